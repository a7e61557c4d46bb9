"""The command line: one Typer app; each subcommand imports what is heavy only when it runs."""

import contextlib
import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType

import typer

from dspark import __version__
from dspark.commands.calibrate import calibrate
from dspark.commands.config import show_settings
from dspark.commands.doctor import doctor
from dspark.commands.entry import main
from dspark.commands.keys import keys
from dspark.commands.launch import launch
from dspark.commands.load import load
from dspark.commands.machine import machine
from dspark.commands.options import SHOW_CONFIG, settle
from dspark.commands.race import race
from dspark.commands.rendering import inert, settle_size
from dspark.commands.serve import serve
from dspark.errors import DSparkError, UsageError

__all__ = ["main", "run"]

ENDING = (signal.SIGTERM, signal.SIGHUP)
WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}

app = typer.Typer(
    name="mlx-dspark",
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(race)
app.command()(load)
app.command()(calibrate)
app.command()(serve)
app.command()(launch)
app.command()(keys)
app.command()(doctor)
app.command()(machine)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlx-dspark {__version__}")
        raise typer.Exit


class _Inert(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return inert(super().format(record))


class _ToStderr(logging.Handler):
    """Writes to whatever stderr is at the time: stdout is for results, and callers may put another stream in place."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


@app.callback()
def common(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
    show_config: bool = typer.Option(
        False,
        "--show-config",
        help="Print every setting with its value and origin (flag, variable, file, default). "
        "Before a command with its flags: as that command would have them.",
    ),
    as_json: bool = typer.Option(False, "--json", help="With --show-config: as JSON, and nothing else on stdout."),
) -> None:
    """Speculative decoding for MLX that changes only the speed, and the measurements that prove it.

    What a flag does not say is taken from its variable (--kv-bits: MLX_DSPARK_KV_BITS), then from its line in
    ~/.mlx-dspark/settings.yaml, then the default; --show-config prints every value and where it came from.
    """
    handler = _ToStderr()
    handler.setFormatter(_Inert("mlx-dspark: %(message)s"))
    logger = logging.getLogger("dspark")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    if show_config:
        context.meta[SHOW_CONFIG] = partial(show_settings, as_json=as_json)
    elif as_json:
        raise UsageError("--json before a command belongs to --show-config; write it after the command")
    if context.invoked_subcommand is None:
        if not show_config:
            raise UsageError("no command is given; mlx-dspark --help lists them")
        settle(context, {})


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code (0 well, 1 error, 2 usage, 3 diverged, 4 slower, 130 interrupted).

    SIGTERM and SIGHUP come out as `SystemExit`, after everything under way was put in order.
    """
    settle_size()
    try:
        with _ended_in_order():
            code = _command(arguments)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _discard_stdout()
        return 141
    except OSError as error:
        if error.filename is not None or error.errno not in WRITING:
            raise
        _discard_stdout()
        _complain(f"cannot write the output ({error.strerror}): free some space, or send it elsewhere")
        return 1


def _command(arguments: list[str]) -> int:
    try:
        code = app(arguments, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except DSparkError as error:
        _complain(str(error))
        return error.exit_code
    except typer.TyperException as error:
        error.show()
        return error.exit_code
    except typer.Abort:
        return 130
    except ImportError:
        why = _mlx_error()
        if why is None:
            raise
        _complain(f"MLX cannot be imported ({why}): mlx-dspark doctor says what to do")
        return 1
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # the libraries leave with 1
            raise left.__context__ from None
        raise


def _mlx_error() -> str | None:
    try:
        import mlx.core  # noqa: F401
    except ImportError as error:
        return str(error) or type(error).__name__
    return None


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let the signals that end a process unwind it, so that cursor, temporary folders and children are seen to.

    A second signal of the kind ends it at once. Those that the caller had ignored (nohup) stay ignored.
    """

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)

    main_thread = threading.current_thread() is threading.main_thread()
    ours = [number for number in ENDING if main_thread and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _discard_stdout() -> None:
    """Give what is still buffered somewhere harmless to go: Python writes it out once more at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> None:
    line = f"mlx-dspark: {inert(' '.join(message.split()))}"
    encoding = sys.stderr.encoding or "ascii"
    with suppress(OSError):
        print(line.encode(encoding, "replace").decode(encoding), file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
