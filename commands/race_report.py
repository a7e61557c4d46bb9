"""What a race, a suite and a comparison look like on a terminal, when they are over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dspark.commands.race_view import folded
from dspark.commands.rendering import print_lines, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from dspark.racing.regression import Comparison
    from dspark.racing.result import RaceResult
    from dspark.racing.series import Series

WIDE = 92  # columns from which a section fits into one table


def print_race(result: RaceResult, console: Console) -> None:
    """Arms, a table a class, the verdict, the warnings."""
    from dspark.racing import report
    from dspark.racing.prompts import depth_label

    if result.interrupted:
        print_lines(console, "interrupted: what follows is a part of the race", style="bold")
    print_table(console, ("arm", "settings", "against plain", "repeats"), _by_arm(report.arm_rows(result)))
    for section in result.sections:
        console.print()
        _print_figures(console, result, section)
        for line in report.positions(result, section):
            print_lines(console, line, indent=1)
    if len(result.depths) > 1:
        console.print()
        print_lines(console, "ratio by depth", style="bold")
        depths = tuple(map(depth_label, result.depths))
        print_table(console, ("arm", *depths), _by_arm(report.depth_rows(result)), depths)
    console.print()
    print_lines(console, report.LEGEND, style="dim")
    print_lines(console, report.stamp_line(result), style="dim")
    console.print()
    diverged = result.verdict == "diverged"
    print_lines(console, report.verdict(result), style="bold red" if diverged else "bold")
    for line in report.evidence(result):
        print_lines(console, line, indent=2)
    print_lines(console, report.repeatability(result))
    for line in report.failures(result):
        print_lines(console, line, style="red")
    for warning in result.warnings:
        print_lines(console, f"warning: {warning.message}", style="yellow")


def print_series(series: Series, console: Console) -> None:
    """Each race of a suite under its name, then all of them at a glance."""
    from dspark.racing import report

    for entry in series.entries:
        if entry.result is not None:
            print_lines(console, f"== {entry.name}", style="bold")
            print_race(entry.result, console)
            console.print()
    if series.interrupted:
        print_lines(console, "interrupted: what follows is a part of the suite", style="bold")
    print_table(console, report.SERIES_HEAD, _by_arm(report.series_rows(series)))


def print_comparisons(comparisons: Sequence[Comparison], bound: float, console: Console) -> None:
    """A table a race, what stands beside it, and the verdict on all."""
    from dspark.racing import report

    for each in comparisons:
        if each.name:
            print_lines(console, f"== {each.name}", style="bold")
        if each.changes:
            print_table(console, report.CHANGE_HEAD, _by_arm(report.change_rows(each)), report.CHANGE_HEAD[2:7])
        for line in report.comparison_lines(each):
            print_lines(console, line)
        console.print()
    print_lines(console, report.comparison_verdict(comparisons, bound), style="bold")


def _print_figures(console: Console, result: RaceResult, section: str) -> None:
    """One table where the terminal is wide enough, otherwise two: end-to-end, and its parts."""
    from dspark.racing import report

    print_lines(console, report.heading(result, section), style="bold")
    wide = console.width >= WIDE
    for columns in (report.SPEED + report.PARTS,) if wide else (report.SPEED, report.PARTS):
        names = tuple(name for name, _ in columns)
        print_table(console, ("arm", *names), _by_arm(report.rows(result, section, columns)), names)


def _by_arm(rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    return [(folded(label), *cells) for label, *cells in rows]
