"""`mlx-dspark doctor`: what is wrong here, and what to do about it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from dspark.doctor import Report

MARKS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}
STYLES = {"ok": None, "warn": "yellow", "fail": "bold red"}
INDENT = 6
TITLE = 18


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print the whole report as JSON, and nothing else on stdout."),
    models: bool = typer.Option(False, "--models", help="List every known pair: whether it fits, and what is on disk."),
    fix_hints: bool = typer.Option(False, "--fix-hints", help="Print nothing but the commands to copy, as a script."),
    redact: bool = typer.Option(False, "--redact", help="Leave out home folders, user and host name: for bug reports."),
) -> None:
    """Check this machine: Python, MLX, device, memory, disk, models, server. Exits 1 when something is broken.

    Example: mlx-dspark doctor --json --redact > report.json
    """
    from dspark.commands.rendering import print_json, stderr_console, stdout_console
    from dspark.doctor import examine

    with stderr_console().status("looking at this machine", spinner="line"):  # seen on a terminal only
        report = examine()
    if redact:
        report = report.redacted(*_personal())
    if as_json:
        print_json(report.as_dict())
    elif fix_hints:
        _print_commands(stdout_console(), report)
    else:
        _print_checks(stdout_console(), report)
        if models:
            _print_models(stdout_console(), report)
    raise typer.Exit(0 if report.ok else 1)


def _personal() -> tuple[set[str], set[str]]:
    """Home folders, and names of the user and the host."""
    import pwd
    import socket

    homes, names = {os.environ.get("HOME", "")}, {os.environ.get("USER", ""), os.environ.get("LOGNAME", "")}
    try:
        account = pwd.getpwuid(os.getuid())
        homes.add(account.pw_dir)
        names.add(account.pw_name)
    except KeyError:  # an account that is not in the list
        pass
    homes |= {os.path.realpath(home) for home in homes if home}
    host = socket.gethostname()
    return homes - {"", "/"}, (names | {host, host.partition(".")[0]}) - {"", "localhost"}


def _print_checks(console: Console, report: Report) -> None:
    from dspark.commands.rendering import print_lines, print_verbatim

    for check in report.checks:
        line = f"{MARKS[check.status]:<{INDENT}}{check.title:<{TITLE}} {check.seen}"
        print_lines(console, line, hanging=INDENT + TITLE + 1, style=STYLES[check.status])
        if check.todo:
            print_lines(console, f"-> {check.todo}", indent=INDENT)
        if check.command:
            print_verbatim(console, f"{' ' * INDENT}{check.command}")
    counts = {status: sum(check.status == status for check in report.checks) for status in MARKS}
    print_lines(console, f"{counts['fail']} broken, {counts['warn']} to look at, {counts['ok']} well")


def _print_commands(console: Console, report: Report) -> None:
    """What is wrong as comments, so that the whole can be pasted or saved."""
    from dspark.commands.rendering import print_verbatim

    for check in report.checks:
        if check.todo:
            print_verbatim(console, f"# {check.title}: {' '.join(f'{check.seen}: {check.todo}'.split())}")
        if check.command:
            print_verbatim(console, check.command)


def _print_models(console: Console, report: Report) -> None:
    from dspark.commands.rendering import print_lines

    print_lines(console, "")
    for pair in report.models:
        parts = [("target", pair.targets), ("drafter", pair.drafters)]
        here = [f"{name} {', '.join(folders)}" for name, folders in parts if folders]
        line = f"{pair.fit:<10} {pair.id:<31} {pair.peak_ram_gb:>4g} GB  {'; '.join(here) or 'not on disk'}"
        print_lines(console, line, hanging=11)
