"""Where the `mlx-dspark` script starts. Imports next to nothing, so that an early Ctrl-C finds `main` in place."""

import os
import sys


def main() -> None:
    """Run a command and turn every way out into an exit code and at most one line."""
    try:
        open_streams()
        from dspark.commands.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def open_streams() -> None:
    """Put /dev/null in place of those of stdin, stdout and stderr that the caller closed.

    Otherwise the next file that is opened takes the number, and whoever writes to the stream writes into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(null, True)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
