"""What a reader of a race should know before trusting it, each with advice."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dspark.decoding.verdict import repeating_tail
from dspark.racing.arms import BASELINE, Entrant, alike
from dspark.racing.conditions import Conditions
from dspark.racing.prompts import OVERALL
from dspark.racing.statistics import Table
from dspark.racing.trials import Trial

HIGH_SPREAD = 0.05
SHORT_TOKENS = 16
SHORT_S = 0.1
BUSY_SHARE = 0.2
SWAPPED_BYTES = 16 * 2**20

Kind = Literal["spread", "short", "busy", "swapped", "cached", "alike", "loop", "slower"]


@dataclass(frozen=True)
class Warning:
    """One line that says what was seen and what to do about it."""

    kind: Kind
    message: str


def find(
    entrants: Sequence[Entrant], trials: Sequence[Trial], table: Table, conditions: Conditions
) -> list[Warning]:
    """All warnings of a race."""
    return [
        *_alike(entrants),
        *_spread(table),
        *_short(table),
        *_machine(conditions),
        *_cached(trials),
        *_loops(trials),
        *_slower(entrants, table),
    ]


def _alike(entrants: Iterable[Entrant]) -> Iterator[Warning]:
    for labels in alike(entrants):
        yield Warning(
            "alike",
            f"{_and(labels)} resolve to the same settings: what lies between them is noise; drop all but one",
        )


def _spread(table: Table) -> Iterator[Warning]:
    for arm, klass, value in _worst(table, "spread"):
        if value > HIGH_SPREAD:
            yield Warning(
                "spread",
                f"{arm} on {klass}: repeats of one prompt lie {value:.0%} apart; close other programs, let the machine "
                "cool, or raise --trials",
            )


def _short(table: Table) -> Iterator[Warning]:
    short = [
        f"{arm} on {klass}"
        for arm, row in table.items()
        for klass, figures in row.items()
        if klass != OVERALL
        and figures.completion_tokens is not None
        and figures.total_s is not None
        and (figures.completion_tokens < SHORT_TOKENS or figures.total_s < SHORT_S)
    ]
    if short:
        yield Warning(
            "short",
            f"answers too short to time ({_and(short)}); raise --max-tokens, or take prompts with longer answers",
        )


def _machine(conditions: Conditions) -> Iterator[Warning]:
    if conditions.others_cpu is not None and conditions.others_cpu > BUSY_SHARE:
        yield Warning(
            "busy",
            f"other programs used {conditions.others_cpu:.0%} of the processor during the race; close them and race again",
        )
    if conditions.swapped_bytes is not None and conditions.swapped_bytes > SWAPPED_BYTES:
        yield Warning(
            "swapped",
            f"{conditions.swapped_bytes / 2**20:,.0f} MB moved to or from swap during the race: the model may not fit; "
            "close other programs or take a smaller quantization",
        )


def _cached(trials: Iterable[Trial]) -> Iterator[Warning]:
    cached = sum(trial.statistics.cached_tokens > 0 for trial in trials)
    if cached:
        yield Warning(
            "cached",
            f"{cached} trials reused a cached prompt, so their prompt processing is too fast; please report this",
        )


def _loops(trials: Iterable[Trial]) -> Iterator[Warning]:
    looping: dict[tuple[str, int], list[str]] = defaultdict(list)
    for trial in trials:
        if trial.reason == "length" and repeating_tail(trial.tokens) and trial.arm not in looping[trial.klass, trial.prompt]:
            looping[trial.klass, trial.prompt].append(trial.arm)
    for (klass, prompt), arms in looping.items():
        if arms:
            yield Warning(
                "loop",
                f"prompt {prompt + 1} ({klass}): the answer of {_and(arms)} repeats itself without end, which flatters "
                "speculation; take another prompt",
            )


def _slower(entrants: Iterable[Entrant], table: Table) -> Iterator[Warning]:
    ratios = {
        entrant.label: ratio.value
        for entrant in entrants
        if entrant.speculation.mode != BASELINE and (ratio := table[entrant.label][OVERALL].end_to_end)
    }
    if ratios and max(ratios.values()) < 1:
        best = max(ratios, key=ratios.__getitem__)
        yield Warning(
            "slower",
            f"speculation does not pay here: the best arm, {best}, runs at {ratios[best]:.2f} of plain decoding; use "
            "plain decoding for this model on this machine, or try a larger target or another drafter",
        )


def _worst(table: Table, field: Literal["spread"]) -> Iterator[tuple[str, str, float]]:
    """Of each arm the class where `field` is highest."""
    for arm, row in table.items():
        values: Mapping[str, float] = {
            klass: value
            for klass, figures in row.items()
            if klass != OVERALL and (value := getattr(figures, field)) is not None
        }
        if values:
            klass = max(values, key=values.__getitem__)
            yield arm, klass, values[klass]


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
