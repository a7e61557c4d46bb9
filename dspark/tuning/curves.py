"""What was measured of a pair on a machine: timings by width, cap and depth, prefill rates, memory a token."""

from collections.abc import Mapping
from dataclasses import dataclass

from dspark.machine.bandwidth import Bandwidth
from dspark.tuning.costs import CostModel, Depth, Host, Points, points
from dspark.tuning.timing import Timing


@dataclass(frozen=True)
class Level:
    """Timings with `depth` tokens of context: target forwards by width, drafts by cap."""

    depth: int
    verify: Mapping[int, Timing]
    draft: Mapping[int, Timing]


@dataclass(frozen=True)
class Prefill:
    """Prompt tokens a second when read in chunks of `chunk`, starting at an empty cache, over `tokens` tokens."""

    chunk: int
    tokens: int
    tokens_per_s: float


@dataclass(frozen=True)
class Curves:
    """`levels` are sorted by depth, at least one. None is what was not measured.

    `ahead` is a plain step fed ahead of its reading, at the first level: what it saves, it saves at any depth; so with
    `host`.
    `lookup_ms` is the host's time to extend the index by a token and to look up; `drift` is how much slower the first
    point was when it was repeated at the end, relatively. `bandwidth` is the machine's, whatever the pair.
    """

    levels: tuple[Level, ...]
    ahead: Timing | None = None
    prefill: tuple[Prefill, ...] = ()
    lookup_ms: float | None = None
    bytes_per_token: float | None = None
    drift: float | None = None
    bandwidth: Bandwidth | None = None
    host: Host | None = None

    @property
    def noise(self) -> float:
        """Relative error of a typical point."""
        errors = sorted(timing.error for level in self.levels for timing in level.verify.values())
        return errors[len(errors) // 2] if errors else 0.0

    def costs(self, source: str) -> CostModel:
        """The cost model that they make."""
        levels = (Depth(level.depth, _points(level.verify), _points(level.draft)) for level in self.levels)
        return CostModel.of(levels, self.ahead.ms if self.ahead else None, self.host or Host(), source)


def _points(timings: Mapping[int, Timing]) -> Points:
    return points({place: timing.ms for place, timing in timings.items()})
