"""What the trials of a race come to: medians, spread, ratios to plain decoding with their intervals, accepted lengths.

A ratio above 1 means faster than plain decoding. It is taken between answers to the same prompt in the same trial:
tokens a second of the arm over tokens a second of plain decoding, which for equally long answers is plain time over arm
time. The ratio of a class is the median of those pairs, the overall ratio the geometric mean of the classes' ratios.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from dspark.racing.prompts import Sections
from dspark.racing.trials import Trial

RESAMPLES = 1000
CONFIDENCE = 0.95

Ratios = Mapping[int, Sequence[float]]
"""The pairs of one class: prompt → one ratio a trial."""


@dataclass(frozen=True)
class Interval:
    """A two-sided 95 % confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """A ratio to plain decoding; no interval where there is nothing to draw it from (single pairs, or all alike)."""

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class Figures:
    """One arm in one section: a class at a depth, or several together. A figure that cannot be known is None.

    Rates, times and counts a trial are medians over the trials. `spread` is how far repeats of the same prompt lie
    apart: the median absolute deviation of the end-to-end time over its median, the middle one of the prompts.
    `accept_len` is tokens settled a round; `accepted_at[k]` of `offered_at[k]` proposals that were tested at draft
    position k were accepted, summed over the trials. `end_to_end` and `decode` are ratios to plain decoding.
    """

    trials: int
    tokens_per_second: float | None
    decode_tokens_per_second: float | None
    prefill_s: float | None
    decode_s: float | None
    total_s: float | None
    spread: float | None
    completion_tokens: float | None
    target_forwards: float | None
    accept_len: float | None
    offered_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    end_to_end: Ratio | None
    decode: Ratio | None


Table = dict[str, dict[str, Figures]]
"""arm → section → figures; the sections in the order of `prompts.sections`, `OVERALL` last."""


def summarise(trials: Sequence[Trial], arms: Sequence[str], sections: Sections, seed: int) -> Table:
    """Figures of each arm in each section; the first of `arms` is plain decoding."""
    table: Table = {}
    for arm in arms:
        end_to_end = _pairs(trials, arms[0], arm, lambda trial: trial.tokens_per_second)
        decode = _pairs(trials, arms[0], arm, lambda trial: trial.statistics.decode_tokens_per_second)
        table[arm] = {
            name: _figures(
                [trial for trial in trials if trial.arm == arm and trial.section in members],
                ratio([end_to_end[each] for each in members if each in end_to_end], seed),
                ratio([decode[each] for each in members if each in decode], seed),
            )
            for name, members in sections.items()
        }
    return table


def ratio(classes: Sequence[Ratios], seed: int) -> Ratio | None:
    """Geometric mean of the medians of `classes`, with its interval; None without a pair.

    The interval is a percentile bootstrap that resamples the prompts of each class, and then the trials of each prompt
    drawn. Both, because trials of one prompt resemble each other: drawing from all pairs alike would take repeats for
    further prompts, and promise for the class what was seen on three prompts.
    """
    values = {value for ratios in classes for each in ratios.values() for value in each}
    if not values:
        return None
    centre = geometric_mean(median(value for each in ratios.values() for value in each) for ratios in classes)
    if len(values) == 1:
        return Ratio(centre, None)
    rng = random.Random(seed)
    drawn = sorted(geometric_mean(median(_resampled(ratios, rng)) for ratios in classes) for _ in range(RESAMPLES))
    if drawn[0] == drawn[-1]:
        return Ratio(centre, None)
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Ratio(centre, Interval(drawn[tail], drawn[-1 - tail]))


def geometric_mean(values: Iterable[float]) -> float:
    """n-th root of the product of n positive values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def spread(times: Sequence[float]) -> float | None:
    """Median absolute deviation over the median; None for fewer than two values."""
    middle = median(times) if len(times) > 1 else 0.0
    return median(abs(time - middle) for time in times) / middle if middle > 0 else None


def _pairs(
    trials: Iterable[Trial], baseline: str, arm: str, rate: Callable[[Trial], float | None]
) -> dict[str, dict[int, list[float]]]:
    """Section → prompt → the ratios of its trials; only pairs of which both halves have a rate."""
    plain = {(trial.prompt, trial.number): rate(trial) for trial in trials if trial.arm == baseline}
    ratios: dict[str, dict[int, list[float]]] = {}
    for trial in trials:
        ours, theirs = rate(trial), plain.get((trial.prompt, trial.number))
        if trial.arm == arm and ours and theirs:
            ratios.setdefault(trial.section, {}).setdefault(trial.prompt, []).append(ours / theirs)
    return ratios


def _resampled(ratios: Ratios, rng: random.Random) -> list[float]:
    prompts = list(ratios)
    drawn: list[float] = []
    for prompt in rng.choices(prompts, k=len(prompts)):
        drawn += rng.choices(ratios[prompt], k=len(ratios[prompt]))
    return drawn


def _figures(trials: Sequence[Trial], end_to_end: Ratio | None, decode: Ratio | None) -> Figures:
    statistics = [trial.statistics for trial in trials]
    rounds = sum(each.rounds for each in statistics)
    by_prompt: dict[int, list[float]] = defaultdict(list)
    for trial in trials:
        by_prompt[trial.prompt].append(trial.total_s)
    return Figures(
        trials=len(trials),
        tokens_per_second=_median(trial.tokens_per_second for trial in trials),
        decode_tokens_per_second=_median(each.decode_tokens_per_second for each in statistics),
        prefill_s=_median(trial.prefill_s for trial in trials),
        decode_s=_median(trial.decode_s for trial in trials),
        total_s=_median(trial.total_s for trial in trials),
        spread=_median(spread(times) for times in by_prompt.values()),
        completion_tokens=_median(each.completion_tokens for each in statistics),
        target_forwards=_median(each.target_forwards for each in statistics),
        accept_len=sum(each.emitted for each in statistics) / rounds if rounds else None,
        offered_at=_totals(each.offered_at for each in statistics),
        accepted_at=_totals(each.accepted_at for each in statistics),
        end_to_end=end_to_end,
        decode=decode,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _totals(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip_longest(*rows, fillvalue=0))
