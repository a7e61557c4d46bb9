"""The command line: one Typer app; each subcommand imports what is heavy only when it runs."""

import logging
import os
import sys

import typer

from dspark import __version__
from dspark.commands.doctor import doctor
from dspark.commands.machine import machine
from dspark.commands.race import race
from dspark.errors import DSparkError

app = typer.Typer(
    name="mlx-dspark",
    help="Speculative decoding for MLX that changes only the speed, and the measurements that prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(race)
app.command()(doctor)
app.command()(machine)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlx-dspark {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that stand before the subcommand."""
    handler = logging.StreamHandler()  # to stderr: stdout is for results
    handler.setFormatter(logging.Formatter("mlx-dspark: %(message)s"))
    logger = logging.getLogger("dspark")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)


def main() -> None:
    """Entry point of `mlx-dspark`: runs a command and turns every way out into an exit code and at most one line."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code (0 well, 1 error, 2 usage, 3 diverged, 130 interrupted)."""
    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except DSparkError as error:
        _complain(str(error))
        return error.exit_code
    except typer.TyperException as error:
        error.show()
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader left. Python flushes stdout once more at exit; give it somewhere harmless to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _complain(message: str) -> None:
    line = f"mlx-dspark: {' '.join(message.split())}"
    encoding = sys.stderr.encoding or "ascii"
    print(line.encode(encoding, "replace").decode(encoding), file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
