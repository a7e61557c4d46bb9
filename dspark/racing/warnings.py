"""What a reader of a race should know before trusting it, each with advice."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dspark.decoding.verdict import repeating_tail
from dspark.machine.watch import Conditions, Disturbance
from dspark.racing.arms import BASELINE, Entrant, alike
from dspark.racing.comparison import Check
from dspark.racing.prompts import OVERALL, is_overall
from dspark.racing.statistics import Table
from dspark.racing.trials import Trial

HIGH_SPREAD = 0.05
SHORT_TOKENS = 16
SHORT_S = 0.1

Kind = Literal["spread", "short", "cached", "alike", "loop", "slower", "unread"]


@dataclass(frozen=True)
class RaceWarning:
    """One line that says what was seen and what to do about it."""

    kind: Kind | Disturbance
    message: str


def find(
    entrants: Sequence[Entrant],
    trials: Sequence[Trial],
    table: Table,
    conditions: Conditions,
    checks: Sequence[Check] = (),
) -> list[RaceWarning]:
    """All warnings of a race."""
    return [
        *_alike(entrants),
        *_spread(table),
        *_short(table),
        *(RaceWarning(kind, message) for kind, message in conditions.disturbed_by().items()),
        *_cached(trials),
        *_loops(trials),
        *_slower(entrants, table),
        *_unread(checks),
    ]


def _alike(entrants: Iterable[Entrant]) -> Iterator[RaceWarning]:
    for labels in alike(entrants):
        yield RaceWarning(
            "alike",
            f"{_and(labels)} resolve to the same settings: what lies between them is noise; drop all but one",
        )


def _spread(table: Table) -> Iterator[RaceWarning]:
    wide = []
    for arm, row in table.items():
        spreads = {
            klass: seen.spread for klass, seen in row.items() if not is_overall(klass) and seen.spread is not None
        }
        worst = max(spreads, key=spreads.__getitem__, default=None)
        if worst is not None and spreads[worst] > HIGH_SPREAD:
            wide.append(f"{arm} {spreads[worst]:.0%} on {worst}")
    if wide:
        yield RaceWarning(
            "spread",
            f"repeats of one prompt lie far apart ({', '.join(wide)}); close other programs, let the machine cool, or "
            "raise --trials",
        )


def _short(table: Table) -> Iterator[RaceWarning]:
    short = {
        klass: None
        for row in table.values()
        for klass, seen in row.items()
        if not is_overall(klass)
        and seen.completion_tokens is not None
        and seen.total_s is not None
        and (seen.completion_tokens < SHORT_TOKENS or seen.total_s < SHORT_S)
    }
    if short:
        yield RaceWarning(
            "short",
            f"answers too short to time ({_and(list(short))}); raise --max-tokens, or take prompts with longer answers",
        )


def _cached(trials: Iterable[Trial]) -> Iterator[RaceWarning]:
    cached = sum(trial.statistics.cached_tokens > 0 for trial in trials)
    if cached:
        yield RaceWarning(
            "cached",
            f"{cached} trials reused a cached prompt, so their prompt processing is too fast; please report this",
        )


def _loops(trials: Iterable[Trial]) -> Iterator[RaceWarning]:
    looping: dict[tuple[int, str], dict[str, None]] = defaultdict(dict)
    for trial in trials:
        if trial.reason == "length" and repeating_tail(trial.tokens):
            looping[trial.prompt, trial.section][trial.arm] = None
    for (prompt, klass), arms in sorted(looping.items()):
        yield RaceWarning(
            "loop",
            f"prompt {prompt + 1} ({klass}): the answer of {_and(list(arms))} repeats itself without end, which "
            "flatters speculation; take another prompt",
        )


def _slower(entrants: Iterable[Entrant], table: Table) -> Iterator[RaceWarning]:
    ratios = {
        entrant.label: ratio.value
        for entrant in entrants
        if entrant.speculation.mode != BASELINE and (ratio := table[entrant.label][OVERALL].end_to_end)
    }
    if ratios and max(ratios.values()) < 1:
        best = max(ratios, key=ratios.__getitem__)
        yield RaceWarning(
            "slower",
            f"speculation does not pay here: the best arm, {best}, runs at {ratios[best]:.2f} of plain decoding; use "
            "plain decoding for this model on this machine, or try a larger target or another drafter",
        )


def _unread(checks: Iterable[Check]) -> Iterator[RaceWarning]:
    unread = sum(each.length - each.compared for each in checks if each.outcome == "tied")
    if unread:
        yield RaceWarning(
            "unread",
            f"{unread} tokens behind ties were not compared: that takes a whole race, and --temperature 0, for a "
            "sampled answer cannot be told again from its middle",
        )


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
