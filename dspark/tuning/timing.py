"""Timing of repeated actions: interleaved, warmed until stable, held against each other. No MLX."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

# An observation further than this many (normal-equivalent) median absolute deviations from the median is left out.
_OUTLIER = 3.5
_MAD_TO_SIGMA = 1.4826
# Warm-up ends when a pass over all actions takes at most this much less than the one before.
_STABLE = 0.03
_WARM_PASSES = 3
# A point is measured again, a few times at most, when its observations scatter this much or so many are outliers.
_BAD_SPREAD = 0.10
_BAD_REJECTED = 0.25
_ATTEMPTS = 2
_POLISHES = 3
_ENOUGH_ACTIONS = 4
LEAST_REPEATS = 5

Key = TypeVar("Key", bound=Hashable)
Timed = Callable[[], float | None]
"""An action to be timed. One that returns a number has done more than is to be counted, and that is its time in ms."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one action: the median of the `count` observations kept, and their relative spread.

    `spread` is 1.48 times the median absolute deviation over the median, which estimates the relative standard
    deviation; `rejected` counts the outliers left out.
    """

    ms: float
    spread: float
    count: int
    rejected: int = 0

    @property
    def bad(self) -> bool:
        """Whether the observations agree too little to be trusted."""
        return self.spread > _BAD_SPREAD or self.rejected > _BAD_REJECTED * (self.count + self.rejected)

    @property
    def error(self) -> float:
        """Relative standard error of `ms`."""
        return 1.2533 * self.spread / self.count**0.5 if self.count else float("inf")


def robust(observations: Sequence[float]) -> Timing:
    """The typical one among `observations` (milliseconds, at least one)."""
    middle = median(observations)
    scatter = _MAD_TO_SIGMA * median(abs(value - middle) for value in observations)
    # Where most are equal to the clock's step any other would be an outlier; a hundredth is no offence.
    limit = _OUTLIER * max(scatter, 0.01 * middle)
    kept = [value for value in observations if abs(value - middle) <= limit]
    centre = median(kept)
    scatter = _MAD_TO_SIGMA * median(abs(value - centre) for value in kept)
    return Timing(centre, scatter / centre if centre > 0 else 0.0, len(kept), len(observations) - len(kept))


def level(passes: Sequence[Mapping[Key, float]]) -> dict[Key, Timing]:
    """The typical observation of each action, after what whole passes were slower or faster by is taken out.

    A machine has slow seconds, and what counts is how actions compare. The first pass has all of them. This is Tukey's
    median polish, on ratios; a pass of few actions is left as it is, since its own speed cannot be told from theirs.
    """
    paces = [1.0] * len(passes)
    for _ in range(_POLISHES):
        typical = {key: median(values) for key, values in _at(passes, paces).items()}
        paces = [_pace(one, typical) for one in passes]
        middle = median(paces)
        paces = [pace / middle for pace in paces]
    return {key: robust(values) for key, values in _at(passes, paces).items()}


def _at(passes: Sequence[Mapping[Key, float]], paces: Sequence[float]) -> dict[Key, list[float]]:
    return {key: [one[key] / pace for one, pace in zip(passes, paces, strict=True) if key in one] for key in passes[0]}


def _pace(one: Mapping[Key, float], typical: Mapping[Key, float]) -> float:
    shares = [ms / typical[key] for key, ms in one.items() if typical[key] > 0]
    return (median(shares) or 1.0) if len(shares) >= _ENOUGH_ACTIONS else 1.0


class Stopwatch:
    """Times actions against each other. `clock` is in seconds.

    Each action of a table gets about `budget_s`, and at least `least` and at most `most` observations.
    """

    def __init__(
        self,
        budget_s: float,
        clock: Callable[[], float] = time.perf_counter,
        *,
        least: int = LEAST_REPEATS,
        most: int = 25,
    ) -> None:
        self._budget_s = budget_s
        self._clock = clock
        self._least, self._most = least, most

    def table(self, actions: Mapping[Key, Timed], tick: Callable[[], None] = lambda: None) -> dict[Key, Timing]:
        """Timings of all `actions`, taken in turn so that a slow moment of the machine meets all of them.

        `tick` is called after every pass.
        """
        last = self._warm(actions, tick)
        passes = max(min(self._most, int(self._budget_s * len(actions) / max(last, 1e-9))), self._least)
        seen = self._observe(actions, passes, tick)
        found = level(seen)
        for _ in range(_ATTEMPTS):
            bad = {key: actions[key] for key in actions if found[key].bad}
            if not bad:
                break
            seen += self._observe(bad, passes, tick)
            found = level(seen)
        return found

    def once(self, action: Timed) -> float:
        """Milliseconds of `action`, done once."""
        started = self._clock()
        taken = action()
        return (self._clock() - started) * 1e3 if taken is None else taken

    def _warm(self, actions: Mapping[Any, Timed], tick: Callable[[], None]) -> float:
        last = float("inf")
        for _ in range(_WARM_PASSES):
            taken = sum(self.once(action) for action in actions.values()) / 1e3
            tick()
            if taken > last * (1.0 - _STABLE):
                return min(taken, last)
            last = taken
        return last

    def _observe(self, actions: Mapping[Key, Timed], passes: int, tick: Callable[[], None]) -> list[dict[Key, float]]:
        seen = []
        for _ in range(passes):
            seen.append({key: self.once(action) for key, action in actions.items()})
            tick()
        return seen
