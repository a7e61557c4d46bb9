"""What a round costs on this machine: verify by width, draft by cap."""

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True)
class CostModel:
    """Milliseconds of one target forward by width (rows), and of one draft by cap (proposals).

    Both are measured points, sorted and at least one; between them costs are interpolated, beyond the last they grow
    by its slope. `source` says where they came from.

    `ahead_ms` is one plain step that was fed ahead of its reading, which a round with proposals cannot be; None where
    it was not measured.
    """

    verify: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...]
    source: str
    ahead_ms: float | None = None

    @property
    def plain_ms(self) -> float:
        """One step of plain decoding, as fast as it goes."""
        alone = self.verify_ms(1)
        return alone if self.ahead_ms is None else min(self.ahead_ms, alone)

    def verify_ms(self, width: int) -> float:
        """One target forward over `width` rows."""
        return _interpolate(self.verify, width)

    def draft_ms(self, cap: int) -> float:
        """One draft of `cap` proposals; 0 where nothing is drafted."""
        return _interpolate(self.draft, cap) if cap > 0 and self.draft else 0.0


def _interpolate(points: tuple[tuple[int, float], ...], x: int) -> float:
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
