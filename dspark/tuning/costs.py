"""What a round costs on this machine: verify by width and depth, draft by cap and depth."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

Points = tuple[tuple[int, float], ...]

# A step this large against the cost of one row is a knee (field report B5).
_KNEE_SHARE = 0.15
# Costs are divided by a plain step's.
_LEAST_MS = 1e-6


@dataclass(frozen=True)
class Depth:
    """Costs with `tokens` of context in the caches; meanings as in `CostModel`."""

    tokens: int
    verify: Points
    draft: Points = ()
    ahead_ms: float | None = None


@dataclass(frozen=True)
class Host:
    """How whole rounds differ from their parts, in milliseconds.

    `wait_ms` is what a round takes beyond its draft and its forward as these were timed by themselves; it may be
    negative. `overlap_ms` is what it saves where a draft need not be read before it is verified: the device drafts
    while the host builds the forward.
    """

    wait_ms: float = 0.0
    overlap_ms: float = 0.0


@dataclass(frozen=True)
class CostModel:
    """Milliseconds of one target forward by width (rows), and of one draft by cap (proposals), at a short context.

    Both are measured points, sorted and at least one of `verify`; between them costs are interpolated, beyond the last
    they grow by its slope. `source` says where they came from.

    `ahead_ms` is one plain step that was fed ahead of its reading, which a round with proposals cannot be; None where
    it was not measured. `host` is what such a round takes besides, at any depth. `deeper` holds the same at greater
    depths, sorted; `depth` is the context of the first ones.
    """

    verify: Points
    draft: Points
    source: str
    ahead_ms: float | None = None
    depth: int = 0
    deeper: tuple[Depth, ...] = ()
    host: Host = Host()

    @classmethod
    def of(cls, levels: Iterable[Depth], ahead_ms: float | None, host: Host, source: str) -> "CostModel":
        """From what was measured at each depth, and a step fed ahead at the first: what it saves, it saves at any."""
        first, *deeper = sorted(levels, key=lambda level: level.tokens)
        if ahead_ms is not None:
            saved = interpolate(first.verify, 1) - ahead_ms
            deeper = [replace(level, ahead_ms=max(interpolate(level.verify, 1) - saved, _LEAST_MS)) for level in deeper]
        return cls(first.verify, first.draft, source, ahead_ms, first.tokens, tuple(deeper), host)

    @property
    def plain_ms(self) -> float:
        """One step of plain decoding, as fast as it goes."""
        alone = self.verify_ms(1)
        return alone if self.ahead_ms is None else min(self.ahead_ms, alone)

    def verify_ms(self, width: int) -> float:
        """One target forward over `width` rows."""
        return interpolate(self.verify, width)

    def draft_ms(self, cap: int) -> float:
        """One draft of `cap` proposals; 0 where nothing is drafted."""
        return interpolate(self.draft, cap) if cap > 0 and self.draft else 0.0

    def round_ms(self, width: int, cap: int = 0, *, waits: bool = True) -> float:
        """A round that waits for what came before: a draft of `cap`, if any, and a forward over `width` rows.

        `waits` says whether the draft is read before it is verified. No round is cheaper than a plain step.
        """
        spared = 0.0 if waits or cap == 0 else self.host.overlap_ms
        return max(self.verify_ms(width) + self.draft_ms(cap) + self.host.wait_ms - spared, self.plain_ms)

    def at(self, tokens: int) -> "CostModel":
        """The same with `tokens` of context, interpolated between the measured depths.

        Beyond the deepest, costs grow as they did up to it. Without deeper measurements the model is its own answer.
        """
        if not self.deeper or tokens <= self.depth:
            return self
        stops = (Depth(self.depth, self.verify, self.draft, self.ahead_ms), *self.deeper)
        above = next((k for k, stop in enumerate(stops) if stop.tokens >= tokens), len(stops) - 1)
        low, high = stops[above - 1], stops[above]
        share = (tokens - low.tokens) / (high.tokens - low.tokens)
        ahead = None
        if low.ahead_ms is not None and high.ahead_ms is not None:
            ahead = _between(low.ahead_ms, high.ahead_ms, share)
        return replace(
            self,
            verify=_blend(low.verify, high.verify, share),
            draft=_blend(low.draft, high.draft, share) if low.draft and high.draft else self.draft,
            ahead_ms=ahead,
            depth=tokens,
            deeper=(),
        )


def _between(low: float, high: float, share: float) -> float:
    # Past the deepest point noise must not make a longer context cheaper.
    return low + share * (high - low) if share <= 1.0 else high + (share - 1.0) * max(high - low, 0.0)


def _blend(low: Points, high: Points, share: float) -> Points:
    places = sorted({place for place, _ in (*low, *high)})
    return tuple((place, _between(interpolate(low, place), interpolate(high, place), share)) for place in places)


def points(milliseconds: Mapping[int, float]) -> Points:
    """A table as a curve."""
    return tuple(sorted(milliseconds.items()))


def interpolate(points: Points, x: int) -> float:
    """The value at `x` of a curve through sorted `points`: constant before them, by the last slope behind them."""
    at = bisect_left(points, (x,))
    if at < len(points) and points[at][0] == x:
        return points[at][1]
    if at == 0:
        return points[0][1]
    if len(points) == 1:
        return points[0][1]
    low, high = (points[at - 1], points[at]) if at < len(points) else points[-2:]
    slope = (high[1] - low[1]) / (high[0] - low[0])
    return low[1] + slope * (x - low[0]) if at < len(points) else high[1] + max(slope, 0.0) * (x - high[0])


def knee(milliseconds: Sequence[float]) -> int | None:
    """The first width (1 is the first entry) whose step is dear, or None where the curve has no such step.

    A step is dear when it exceeds the mean of the steps before it by 15 % of the cost of one row. A point that a wider
    one undercuts is noise, and is taken at the wider one's cost.
    """
    lower = list(accumulate(reversed(milliseconds), min))[::-1]
    steps = [after - before for before, after in pairwise(lower)]
    for k, step in enumerate(steps):
        mean = sum(steps[:k]) / k if k else 0.0
        if step > mean + _KNEE_SHARE * milliseconds[0]:
            return k + 2
    return None
