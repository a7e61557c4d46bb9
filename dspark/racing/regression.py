"""Whether a race lost speed against an earlier one: a paired test over prompts, so that noise alone fails nothing.

Two things are compared, each as the new over the old, in logarithms, prompt by prompt. An arm's *ratio* to plain
decoding of its own session, which a slow day of the machine leaves alone. And the *rate* in tokens a second, where both
sessions ran on the same undisturbed machine that is no virtual one: elsewhere a rate says as much of the neighbours.
A prompt's value is the median over its trials; the change is the geometric mean over prompts. Its interval resamples
prompts, and trials within them, and is widened for few prompts (by Student's t, as a percentile bootstrap is too narrow
there). Only a change whose whole interval lies below the bound is a loss.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median
from typing import Literal

from dspark.racing.saved import SavedEntry, SavedRace
from dspark.racing.statistics import CONFIDENCE, Interval

RESAMPLES = 1000
FEWEST_PROMPTS = 3
PLACE = ("chip", "gpu_cores", "device", "architecture", "translated")  # others make a ratio another ratio
MACHINE = (*PLACE, "cores", "usable_cores", "memory_bytes", "os", "virtual", "blas")
PAIR = ("target", "drafter", "dtype", "quantization", "kv_bits", "drafter_bits", "drafter_window")
SETTINGS = ("max_tokens", "sampling")
VERSIONS = ("os", "python", "mlx", "mlx_lm", "mlx_dspark", "git")

Measure = Literal["ratio", "rate"]
Outcome = Literal["ok", "lost", "unclear"]
Key = tuple[str, int, str]
"""A prompt: class, depth, text."""
Logs = dict[Key, dict[int, float]]
"""prompt → trial → logarithm."""


@dataclass(frozen=True)
class Change:
    """One arm's ratio or rate, new over old; above 1 is faster.

    `interval` is None where there are too few prompts or trials to tell noise from change. The outcome is `lost` where
    the interval lies below the bound, `ok` where it lies above, `unclear` in between and without one.
    """

    arm: str
    measure: Measure
    prompts: int
    old: float
    new: float
    change: float
    interval: Interval | None
    outcome: Outcome


@dataclass(frozen=True)
class Comparison:
    """Two races of one name. `incomparable` says why there are no `changes`; `notes` what a reader must know.

    `faults` are losses of another kind: outputs that diverged, arms that failed or are missing.
    """

    name: str
    changes: tuple[Change, ...] = ()
    incomparable: str | None = None
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    diverged: bool = False

    @property
    def lost(self) -> bool:
        return any(change.outcome == "lost" for change in self.changes)


def compare_all(
    old: Mapping[str, SavedEntry], new: Mapping[str, SavedEntry], bound: float, seed: int = 0
) -> list[Comparison]:
    """Every race of the old result against its namesake in the new one; a new race without one is only noted."""
    found = []
    for name, before in old.items():
        after = new.get(name)
        if before.result is None:
            found.append(Comparison(name, incomparable="it did not run in the old result"))
        elif after is None or after.result is None:
            error = after.error if after is not None else None
            found.append(Comparison(name, faults=(f"not in the new result ({error or 'it was not run'})",)))
        else:
            found.append(compare(name, before.result, after.result, bound, seed))
    return found + [Comparison(name, incomparable="the old result has none") for name in new if name not in old]


def compare(name: str, old: SavedRace, new: SavedRace, bound: float, seed: int = 0) -> Comparison:
    """One race against an earlier one; `bound` is the least change that is no loss, 0.95 for instance."""
    diverged = new.summary.verdict == "diverged"
    faults = [*_verdict_faults(new), *_missing_arms(old, new)]
    reason = _incomparable(old, new)
    if reason is not None:
        return Comparison(name, incomparable=reason, faults=tuple(faults), diverged=diverged)
    steady, why_not = _same_undisturbed_machine(old, new)
    changes = []
    for arm in (arm.label for arm in old.arms if arm.label in {other.label for other in new.arms}):
        if arm != old.arms[0].label:
            changes.append(_change(arm, "ratio", _ratios(old, arm), _ratios(new, arm), bound, seed))
        if steady:
            changes.append(_change(arm, "rate", _rates(old, arm), _rates(new, arm), bound, seed))
    return Comparison(
        name,
        changes=tuple(change for change in changes if change is not None),
        notes=(*_notes(old, new), *([why_not] if why_not else [])),
        faults=tuple(faults),
        diverged=diverged,
    )


def _verdict_faults(new: SavedRace) -> Iterator[str]:
    if new.summary.verdict == "diverged":
        yield "the new outputs diverged from plain decoding"
    elif new.summary.verdict is None and len(new.arms) > 1:
        yield "the new race has no verdict on its outputs"
    if new.interrupted:
        yield "the new race was interrupted"


def _missing_arms(old: SavedRace, new: SavedRace) -> Iterator[str]:
    ran = {arm.label: arm.error for arm in new.arms}
    for arm in old.arms:
        if arm.error is None and arm.label not in ran:
            yield f"{arm.label} is missing in the new race"
        elif arm.error is None and ran[arm.label] is not None:
            yield f"{arm.label} failed in the new race: {ran[arm.label]}"


def _incomparable(old: SavedRace, new: SavedRace) -> str | None:
    """Why no figure of the one may be held against one of the other."""
    kinds = (
        ("machine", old.stamp, new.stamp, PLACE),
        ("model", old.pair, new.pair, PAIR),
        ("settings", old.settings, new.settings, SETTINGS),
    )
    for kind, before, after, keys in kinds:
        off = [
            f"{key} {before.get(key)} before, {after.get(key)} now" for key in keys if before.get(key) != after.get(key)
        ]
        if off:
            return f"other {kind} ({'; '.join(off)})"
    return None if _keys(old) & _keys(new) else "no prompt in common"


def _same_undisturbed_machine(old: SavedRace, new: SavedRace) -> tuple[bool, str | None]:
    """Whether rates may be compared, and otherwise why not."""
    off = [key for key in MACHINE if old.stamp.get(key) != new.stamp.get(key)]
    if off:
        return False, f"rates are not compared: {', '.join(off)} changed"
    if old.stamp.get("virtual") is not False:
        return False, "rates are not compared: a virtual machine shares its hardware, only ratios hold from day to day"
    for name, race in (("old", old), ("new", new)):
        disturbed = race.conditions.disturbed_by()
        if disturbed:
            return False, f"rates are not compared: the {name} race was disturbed ({', '.join(disturbed)})"
    return True, None


def _notes(old: SavedRace, new: SavedRace) -> Iterator[str]:
    off = [
        f"{key} {old.stamp.get(key)} -> {new.stamp.get(key)}"
        for key in VERSIONS
        if old.stamp.get(key) != new.stamp.get(key)
    ]
    if off:
        yield f"since {old.date[:10]}: {', '.join(off)}"
    common, either = len(_keys(old) & _keys(new)), len(_keys(old) | _keys(new))
    if common < either:
        yield f"only the {common} of {either} prompts that both races have are compared"
    if common < FEWEST_PROMPTS:
        yield f"{common} prompts are too few to tell a loss from noise; race {FEWEST_PROMPTS} or more"


def _keys(race: SavedRace) -> set[Key]:
    return {_key(race, at) for at in range(len(race.prompts))}


def _key(race: SavedRace, prompt: int) -> Key:
    it = race.prompts[prompt]
    return it.klass, it.depth, it.prompt


def _rates(race: SavedRace, arm: str) -> Logs:
    found: Logs = {}
    for trial in race.trials:
        if trial.arm == arm:
            found.setdefault(_key(race, trial.prompt), {})[trial.trial] = trial.log_rate
    return found


def _ratios(race: SavedRace, arm: str) -> Logs:
    """Each answer over plain decoding's of the same prompt and trial."""
    plain = _rates(race, race.arms[0].label)
    ratios: Logs = {}
    for key, rates in _rates(race, arm).items():
        pairs = {number: rate - plain[key][number] for number, rate in rates.items() if number in plain.get(key, {})}
        if pairs:
            ratios[key] = pairs
    return ratios


def _change(arm: str, measure: Measure, old: Logs, new: Logs, bound: float, seed: int) -> Change | None:
    common = [key for key in old if key in new]
    if not common:
        return None
    pairs = [(list(old[key].values()), list(new[key].values())) for key in common]
    interval = _interval(pairs, seed) if len(pairs) >= FEWEST_PROMPTS else None
    outcome: Outcome = "unclear"
    if interval is not None and interval.high < bound:
        outcome = "lost"
    elif interval is not None and interval.low >= bound:
        outcome = "ok"
    before, after = (math.exp(fmean(median(pair[side]) for pair in pairs)) for side in (0, 1))
    return Change(arm, measure, len(pairs), before, after, after / before, interval, outcome)


def _interval(pairs: Sequence[tuple[list[float], list[float]]], seed: int) -> Interval:
    rng = random.Random(seed)
    count = len(pairs)
    drawn = []
    for _ in range(RESAMPLES):
        differences = (
            median(rng.choices(new, k=len(new))) - median(rng.choices(old, k=len(old)))
            for old, new in rng.choices(pairs, k=count)
        )
        drawn.append(fmean(differences))
    centre = fmean(median(new) - median(old) for old, new in pairs)
    drawn.sort()
    tail = (1 - CONFIDENCE) / 2
    at = round(RESAMPLES * tail)
    # The bootstrap's spread is that of a sample taken for the whole, and its tails are normal ones.
    wider = math.sqrt(count / (count - 1)) * _student(tail, count - 1) / -NormalDist().inv_cdf(tail)
    low, high = (centre + wider * (edge - centre) for edge in (drawn[at], drawn[-1 - at]))
    return Interval(math.exp(low), math.exp(high))


def _student(tail: float, freedom: int) -> float:
    """The value that Student's t exceeds with probability `tail`, to 1 %, from two degrees of freedom on."""
    # Exact for two; beyond, the series by powers of 1 / freedom.
    z = -NormalDist().inv_cdf(tail)
    if freedom == 2:
        return (1 - 2 * tail) * math.sqrt(2 / (1 - (1 - 2 * tail) ** 2))
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + g1 / freedom + g2 / freedom**2 + g3 / freedom**3
