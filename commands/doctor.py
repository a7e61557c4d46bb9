"""`mlx-dspark doctor`: what is wrong here, and what to do about it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from dspark.machine.report import Report

WRITTEN = ("own", "hugging face")  # the shelves that downloads go to
MARKS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}
STYLES = {"ok": None, "warn": "yellow", "fail": "bold red"}
INDENT = 6


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON, and nothing else on stdout."),
    redact: bool = typer.Option(False, "--redact", help="Leave out home folders and the user name, for bug reports."),
) -> None:
    """Check this machine: Python, MLX, device, memory, disk, model folders. Exits 1 when something is broken.

    Example: mlx-dspark doctor --json --redact > report.json
    """
    from dspark.commands.rendering import print_json
    from dspark.errors import StorageError
    from dspark.hub.shelves import Shelf, shelves
    from dspark.machine.report import inspect

    searched: tuple[Shelf, ...] = ()
    homeless = None
    try:
        searched = shelves()
    except StorageError as error:
        homeless = str(error)
    # Some libraries greet on stdout when they are first imported.
    with contextlib.redirect_stdout(sys.stderr):
        report = inspect(searched, [shelf.path for shelf in searched if shelf.kind in WRITTEN], homeless=homeless)
    if redact:
        home = _home()
        report = report.redacted(home, os.environ.get("USER") or home.name)
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)
    raise typer.Exit(1 if report.broken else 0)


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # neither HOME nor an account
        return Path("/")


def _print(report: Report) -> None:
    from dspark.commands.rendering import print_lines, print_verbatim, stdout_console

    console = stdout_console()
    for check in report.checks:
        line = f"{MARKS[check.status]:<{INDENT}}{check.id:<13} {check.seen}"
        print_lines(console, line, hanging=INDENT + 14, style=STYLES[check.status])
        if check.todo:
            print_lines(console, f"-> {check.todo}", indent=INDENT)
        if check.command:
            print_verbatim(console, f"{' ' * INDENT}{check.command}")
    counts = {status: sum(check.status == status for check in report.checks) for status in MARKS}
    print_lines(console, f"{counts['fail']} broken, {counts['warn']} to look at, {counts['ok']} well")
