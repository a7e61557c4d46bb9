"""A race, a suite of races and a comparison as Markdown."""

from collections.abc import Iterable, Iterator, Sequence

from dspark.racing import report
from dspark.racing.prompts import depth_label
from dspark.racing.regression import Comparison
from dspark.racing.result import RaceResult
from dspark.racing.series import Series


def to_markdown(result: RaceResult) -> str:
    """Command, date and stamp, then the tables of every section and the verdict."""
    return "\n".join(_race(result)) + "\n"


def series_markdown(series: Series) -> str:
    """All races of a suite at a glance, then one after another."""
    return "\n".join(_series(series)) + "\n"


def comparison_markdown(comparisons: Sequence[Comparison], bound: float) -> str:
    """What was compared, a row an arm and measure, and what cannot be."""
    return "\n".join(_comparison(comparisons, bound)) + "\n"


def _series(series: Series) -> Iterator[str]:
    yield f"# Suite of {len(series.entries)} races, {series.date:%Y-%m-%d}\n"
    if series.interrupted:
        yield "**Interrupted: a part of the races only.**\n"
    yield from _grid(report.SERIES_HEAD, report.series_rows(series), numeric=False)
    for result in series.results:
        yield from _race(result)
        yield ""


def _comparison(comparisons: Sequence[Comparison], bound: float) -> Iterator[str]:
    yield f"# Compared with an earlier result, failing below {bound:g}\n"
    for each in comparisons:
        if each.name:
            yield f"## {_cell(each.name)}\n"
        if each.changes:
            yield from _grid(report.CHANGE_HEAD, report.change_rows(each))
        for line in report.comparison_lines(each):
            yield f"- {_cell(line)}"
        yield ""
    yield f"**{report.comparison_verdict(comparisons, bound)}**"


def _race(result: RaceResult) -> Iterator[str]:
    yield f"# Race of {_cell(result.loaded.model)}, {result.setup.date:%Y-%m-%d}\n"
    yield f"```\n{result.setup.command}\n```\n"
    yield from _grid(("", ""), report.stamp_rows(result), numeric=False)
    for note in result.loaded.notes:
        yield f"{_cell(note)}\n"
    if result.interrupted:
        yield "**Interrupted: a part of the trials only.**\n"
    yield from _grid(("arm", "settings", "against plain", "repeats itself"), report.arm_rows(result), numeric=False)
    columns = report.SPEED + report.PARTS
    for klass in result.sections:
        yield f"## {_cell(report.heading(result, klass))}\n"
        yield from _grid(("arm", *(name for name, _ in columns)), report.rows(result, klass, columns))
        for line in report.positions(result, klass):
            yield f"- {line}"
        yield ""
    if len(result.depths) > 1:
        yield "## ratio by depth\n"
        yield from _grid(("arm", *map(depth_label, result.depths)), report.depth_rows(result))
    yield f"{report.LEGEND}\n"
    yield "## Verdict\n"
    yield f"**{report.verdict(result)}**\n"
    yield f"{report.repeatability(result)}\n"
    for line in (*report.failures(result), *report.evidence(result), *(each.message for each in result.warnings)):
        yield f"- {_cell(line)}"


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: bool = True) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---|" + ("---:|" if numeric else "---|") * (len(head) - 1)
    for row in rows:
        yield f"| {' | '.join(_cell(text) for text in row)} |"
    yield ""


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
