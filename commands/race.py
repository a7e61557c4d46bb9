"""`mlx-dspark race`: plain decoding against speculation on this machine, with a verdict on the output."""

from __future__ import annotations

import datetime
import errno
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from dspark.commands.interrupts import Interrupts, let_go
from dspark.commands.options import load_options, takes
from dspark.commands.race_view import View, folded, table_width, view
from dspark.commands.rendering import print_lines, print_verbatim, stderr_console, stdout_console, table
from dspark.errors import StorageError, UsageError
from dspark.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

    from dspark.engine import Loaded
    from dspark.racing.result import RaceResult, Setup
    from dspark.racing.runner import Runner

STDOUT = "-"
WIDE = 92  # columns from which a class fits into one table


@takes("model", "drafter", "precision", "kv_bits", "drafter_bits", "drafter_window", "trust_remote_code")
def race(
    settings: Settings,
    arm: Annotated[
        list[str] | None,
        Option(
            metavar="ARM",
            help="baseline, lookup, dspark, dflash or auto; settings follow a colon: dspark:cap=4,lookup=off or "
            "dspark:confidence=0.3. Repeatable. Default: plain decoding against every mode of the pair.",
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None, Option(metavar="TEXT", help="A prompt of your own. Repeatable. Default: a built-in set.")
    ] = None,
    prompt_file: Annotated[
        list[Path] | None,
        Option(
            metavar="FILE",
            help='Prompts, one a line: text, or JSON lines {"prompt": "...", "class": "..."}. Repeatable.',
        ),
    ] = None,
    max_tokens: Annotated[int, Option(metavar="N", help="Longest answer, in tokens.")] = 64,
    trials: Annotated[int, Option(metavar="N", help="How often each arm answers each prompt.")] = 3,
    seed: Annotated[int, Option(metavar="N", help="Seed of the draws and of the bootstrap intervals.")] = 0,
    temperature: Annotated[
        float, Option(metavar="X", help="0 is greedy. Above, all arms draw with the same seed and must still agree.")
    ] = 0.0,
    top_p: Annotated[float, Option(metavar="X", help="Nucleus filter; 1 is off.")] = 1.0,
    top_k: Annotated[int, Option(metavar="N", help="Keep the N likeliest tokens; 0 is off.")] = 0,
    min_p: Annotated[float, Option(metavar="X", help="Drop tokens below X times the likeliest; 0 is off.")] = 0.0,
    json_file: Annotated[
        str | None, Option("--json", metavar="FILE", help="Write the result as JSON; - is stdout.")
    ] = None,
    markdown_file: Annotated[
        str | None, Option("--markdown", metavar="FILE", help="Write the tables as Markdown; - is stdout.")
    ] = None,
) -> int:
    """Race plain decoding against speculation, and check that the output is the same.

    Exit code: 0 identical or tied, 3 diverged, 1 error, 2 usage, 130 interrupted (143 by SIGTERM, 129 by SIGHUP).

    Examples:

        mlx-dspark race

        mlx-dspark race --arm dspark:cap=2 --arm dspark:cap=4 --trials 5 --markdown race.md
    """
    from dspark.decoding.request import Sampling
    from dspark.racing.arms import default_arms, enter, parse_all
    from dspark.racing.prompts import gather
    from dspark.racing.result import Setup
    from dspark.racing.runner import Runner

    for name, count in (("--max-tokens", max_tokens), ("--trials", trials)):
        if count < 1:
            raise UsageError(f"{name} {count}: must be 1 or more")
    _check_outputs(json_file, markdown_file)
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
    arms = parse_all(arm) if arm else None
    prompts = gather(prompt or [], prompt_file or [])
    said = stderr_console()
    if settings.origin("model") == "default":
        print_lines(said, "no --model given: racing the demo pair (SmolLM2-135M-Instruct, for a first look)")

    from dspark.engine import Engine
    from dspark.machine import stamp

    engine = Engine()
    loaded = engine.load(replace(load_options(settings), mode="auto"))  # the arms say which modes
    for note in loaded.notes:
        print_lines(said, note)
    sampling.check(loaded.vocabulary)
    entrants = enter(default_arms(loaded.modes, engine) if arms is None else arms, engine)
    command, now = shlex.join(["mlx-dspark", *sys.argv[1:]]), datetime.datetime.now(datetime.UTC)
    setup = Setup(command, max_tokens, trials, seed, now, sampling)
    runner = Runner(
        engine,
        entrants,
        prompts,
        max_tokens=max_tokens,
        trials=trials,
        context_window=loaded.context_window,
        sampling=sampling,
    )
    watched, stamped = view(entrants), stamp()
    with Interrupts() as interrupts:
        result = drive(runner, watched, setup, loaded, stamped, interrupts)
        code = exit_code(result, interrupts.received)
        try:
            written = publish(result, json_file, markdown_file)
        except OSError:
            if not interrupts.hung_up:
                raise
            let_go()
            return code
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


def publish(result: RaceResult, json_file: str | None, markdown_file: str | None) -> bool:
    """Write the exports and print the tables; False where a file could not be written, which is said last.

    Files come first: nothing that befalls a terminal or a pipe can lose them. A stdout that an export takes is left to
    it; the tables go to stderr.
    """
    from dspark.racing.export import to_json, to_markdown, write

    failed = []
    for target, text in ((json_file, to_json), (markdown_file, to_markdown)):
        if target is not None and target != STDOUT:
            try:
                write(text(result), Path(target))
            except StorageError as error:
                failed.append(str(error))
    try:
        taken = STDOUT in (json_file, markdown_file)
        print_race(result, stderr_console() if taken else stdout_console())
        if json_file == STDOUT:
            sys.stdout.write(to_json(result))
        if markdown_file == STDOUT:
            console = stdout_console()
            for line in to_markdown(result).rstrip("\n").split("\n"):
                print_verbatim(console, line)
    finally:
        for message in failed:
            print_lines(stderr_console(), f"mlx-dspark: {message}", style="red")
    return not failed


def print_race(result: RaceResult, console: Console) -> None:
    """Arms, a table a class, the verdict, the warnings."""
    from dspark.racing import report

    if result.interrupted:
        print_lines(console, "interrupted: what follows is a part of the race", style="bold")
    _print_table(console, ("arm", "settings", "against plain", "repeats"), report.arm_rows(result))
    for klass in result.sections:
        console.print()
        _print_figures(console, result, klass)
        for line in report.positions(result, klass):
            print_lines(console, line, indent=1)
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


def exit_code(result: RaceResult, received: int | None = None) -> int:
    """0 identical or tied, 3 diverged, 1 an arm failed; interrupted, 128 and the signal `received` (Ctrl-C: 130)."""
    if result.interrupted:
        return 128 + (received or signal.SIGINT)
    if result.verdict == "diverged":
        return 3
    return 1 if result.failures else 0


def _print_figures(console: Console, result: RaceResult, klass: str) -> None:
    """One table where the terminal is wide enough, otherwise two: end-to-end, and its parts."""
    from dspark.racing import report

    print_lines(console, report.heading(result, klass), style="bold")
    wide = console.width >= WIDE
    for columns in (report.SPEED + report.PARTS,) if wide else (report.SPEED, report.PARTS):
        names = tuple(name for name, _ in columns)
        _print_table(console, ("arm", *names), report.rows(result, klass, columns), names)


def _print_table(
    console: Console, head: Sequence[str], rows: Iterable[Sequence[str]], numeric: tuple[str, ...] = ()
) -> None:
    """A table, or a line a cell where the terminal is too narrow for it: a number cut short is another number."""
    rows = [(folded(label), *cells) for label, *cells in rows]
    names = [name.replace(" ", "\n", 1) if name in numeric else name for name in head]  # numbers are narrow
    if table_width(names, rows, [name in numeric for name in head]) > console.width:
        for row in rows:
            for name, cell in zip(head, row, strict=True):
                print_lines(console, f"{name}: {' '.join(cell.split())}")
            console.print()
        return
    drawn = table(*names, numeric=tuple(name for name, old in zip(names, head, strict=True) if old in numeric))
    drawn.show_edge, drawn.pad_edge, drawn.collapse_padding = False, False, True
    for row in rows:
        drawn.add_row(*row)
    console.print(drawn)


def _check_outputs(json_file: str | None, markdown_file: str | None) -> None:
    """Find out before the race whether its result can be written after it."""
    if json_file == markdown_file == STDOUT:
        raise UsageError("--json - and --markdown - both want stdout; give one of them a file")
    paths = []
    for name, target in (("--json", json_file), ("--markdown", markdown_file)):
        if target is not None and target != STDOUT:
            try:
                _try_to_write(target)
                paths.append(os.path.realpath(target))
            except (OSError, ValueError) as error:
                wrong = getattr(error, "strerror", None) or error
                raise UsageError(f"{name} {target!r} cannot be written ({wrong}); give another file") from error
    if len(paths) > len(set(paths)):
        raise UsageError("--json and --markdown name the same file; give each its own")


def _try_to_write(target: str) -> None:
    """Raise the error that writing to `target` would raise; leaves nothing behind."""
    if target.endswith(tuple(filter(None, (os.sep, os.altsep)))):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    path = Path(target)
    there = os.path.lexists(target)
    if there and path.exists() and not path.is_dir() and not path.is_file():
        return  # a pipe or a device: opening it is felt at the other end
    with path.open("ab"):
        pass
    if not there:
        path.unlink()
