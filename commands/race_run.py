"""What `mlx-dspark race` runs: one race, a suite of races, or a comparison of two results; each gives an exit code."""

from __future__ import annotations

import datetime
import shlex
import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.commands.interrupts import Interrupts, let_go
from dspark.commands.race_outputs import Outputs, Texts
from dspark.commands.race_report import print_comparisons, print_race, print_series
from dspark.commands.race_view import View, view
from dspark.commands.rendering import print_lines, stderr_console
from dspark.errors import UsageError

if TYPE_CHECKING:
    from dspark.engine import Loaded
    from dspark.racing.plan import Heat, Plan
    from dspark.racing.regression import Comparison
    from dspark.racing.result import RaceResult, Setup
    from dspark.racing.runner import Runner
    from dspark.racing.series import Entry, Series
    from dspark.racing.session import Session

DIVERGED = 3
LOST = 4


def run_race(plan: Plan, outputs: Outputs) -> int:
    """One race of the plan's pair, at all its depths; returns the exit code."""
    from dspark.racing.plan import Heat
    from dspark.racing.session import Session

    start = Session(plan, _command()).start(Heat(plan.choices[0], plan.depths))
    _print_notes(start.loaded)
    with Interrupts() as interrupts:
        watched = view(start.runner.entrants)
        result = drive(start.runner, watched, start.setup, start.loaded, start.stamp, interrupts)
        code = exit_code(result, interrupts.received)
        try:
            written = publish(result, outputs)
        except OSError:
            if not interrupts.hung_up:
                raise
            let_go()
            return code
        return code if written else code or 1


def run_suite(plan: Plan, outputs: Outputs) -> int:
    """The races of a suite in turn. Files are written anew after each, so that whatever ends it keeps what is done."""
    from dspark.racing.series import Entry, Series
    from dspark.racing.session import Session

    command = _command()
    session = Session(plan, command)
    said, now = stderr_console(), datetime.datetime.now(datetime.UTC)
    heats = list(plan.heats())
    entries = [Entry(heat.name) for heat in heats]
    code = 0
    for at, heat in enumerate(heats):
        print_lines(said, f"race {at + 1} of {len(heats)}: {heat.name}")
        interrupts = Interrupts()
        with interrupts:
            entries[at], reached = _run_heat(session, heat, interrupts)
            code = worst(code, reached)
            if interrupts.received is None and at + 1 < len(heats):
                outputs.write_files(series_texts(Series(command, now, tuple(entries))))
        if interrupts.received is not None:
            break
    series = Series(command, now, tuple(entries), interrupted=interrupts.received is not None)
    try:
        written = outputs.publish(series_texts(series), lambda console: print_series(series, console))
    except OSError:
        if not interrupts.hung_up:
            raise
        let_go()
        return code
    return code if written else code or 1


def _run_heat(session: Session, heat: Heat, interrupts: Interrupts) -> tuple[Entry, int]:
    """One race of a suite and its exit code. What cannot be loaded or does not fit has failed, and says why."""
    from dspark.racing.runner import told
    from dspark.racing.series import Entry

    try:
        start = session.start(heat)
        _print_notes(start.loaded)
        watched = view(start.runner.entrants)
        result = drive(start.runner, watched, start.setup, start.loaded, start.stamp, interrupts)
    except KeyboardInterrupt:
        interrupts.shield()
        return Entry(heat.name), exit_by(interrupts.received)
    except Exception as error:
        interrupts.shield()
        message = told(error)
        print_lines(stderr_console(), f"{heat.name} failed: {message}")
        return Entry(heat.name, error=message), 1
    return Entry(heat.name, result), exit_code(result, interrupts.received)


def run_comparison(old: Path, new: Path, bound: float, outputs: Outputs) -> int:
    """Compare two saved results; returns the exit code."""
    from dspark.racing.regression import compare_all
    from dspark.racing.saved import read_races

    if not 0 < bound <= 1:
        raise UsageError(f"--fail-below {bound:g}: give more than 0, up to 1")
    found = compare_all(read_races(old), read_races(new), bound)
    written = outputs.publish(comparison_texts(found, bound), lambda console: print_comparisons(found, bound, console))
    code = compared_code(found)
    return code if written else code or 1


def drive(
    runner: Runner,
    watched: View,
    setup: Setup,
    loaded: Loaded,
    stamp: Mapping[str, Any],
    interrupts: Interrupts,
) -> RaceResult:
    """Run the race before the user's eyes and conclude it. An interrupt cuts it short, and keeps what was recorded."""
    from dspark.machine.watch import Watch
    from dspark.racing.result import conclude

    watch = Watch()
    try:
        with watch, watched, closing(runner.run()) as race_under_way:
            for progress in race_under_way:
                interrupts.check()
                watched.show(progress)
        result = conclude(runner, setup, loaded, stamp, watch.conditions)
        interrupts.shield()
    except KeyboardInterrupt:
        interrupts.shield()
        result = conclude(runner, setup, loaded, stamp, watch.conditions, interrupted=True)
    return result


def publish(result: RaceResult, outputs: Outputs) -> bool:
    """Write the exports of one race and print it; False where a file could not be written."""
    from dspark.racing.export import to_json
    from dspark.racing.markdown import to_markdown
    from dspark.racing.spreadsheet import to_csv

    texts: Texts = {
        "json": lambda: to_json(result),
        "markdown": lambda: to_markdown(result),
        "csv": lambda: to_csv([result]),
    }
    return outputs.publish(texts, lambda console: print_race(result, console))


def series_texts(series: Series) -> Texts:
    """The exports of a suite."""
    from dspark.racing.export import dumped, series_document
    from dspark.racing.markdown import series_markdown
    from dspark.racing.spreadsheet import to_csv

    return {
        "json": lambda: dumped(series_document(series)),
        "markdown": lambda: series_markdown(series),
        "csv": lambda: to_csv(series.results),
    }


def comparison_texts(found: list[Comparison], bound: float) -> Texts:
    """The exports of a comparison."""
    from dspark.racing.export import comparison_document, dumped
    from dspark.racing.markdown import comparison_markdown
    from dspark.racing.spreadsheet import comparison_csv

    return {
        "json": lambda: dumped(comparison_document(found, bound)),
        "markdown": lambda: comparison_markdown(found, bound),
        "csv": lambda: comparison_csv(found),
    }


def exit_code(result: RaceResult, received: int | None = None) -> int:
    """0 identical or tied, 3 diverged, 1 an arm failed; interrupted, 128 and the signal `received` (Ctrl-C: 130)."""
    if result.interrupted:
        return exit_by(received)
    if result.verdict == "diverged":
        return DIVERGED
    return 1 if result.failures else 0


def exit_by(received: int | None) -> int:
    """The exit code of a process that a signal ended."""
    return 128 + (received or signal.SIGINT)


def compared_code(found: list[Comparison]) -> int:
    """3 the new outputs diverged, 4 an arm lost speed, 1 another fault or nothing to compare, otherwise 0."""
    if any(each.diverged for each in found):
        return DIVERGED
    if any(each.lost for each in found):
        return LOST
    return 1 if any(each.faults for each in found) or not any(each.changes for each in found) else 0


def worst(*codes: int) -> int:
    """Of the exit codes of several races the one that says most: interrupted, diverged, error, well."""
    return max(codes, key=lambda code: (code > 128, code))


def _command() -> str:
    return shlex.join(["mlx-dspark", *sys.argv[1:]])


def _print_notes(loaded: Loaded) -> None:
    for note in loaded.notes:
        print_lines(stderr_console(), note)
