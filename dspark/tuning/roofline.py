"""The roofline: how fast decoding could be at best on a machine's memory and arithmetic. Pure arithmetic."""

from dataclasses import asdict, dataclass
from typing import Any

from dspark.targets.traffic import Traffic

NEAR = 0.7  # share of the ceiling from which memory is what binds
OVER = 1.1  # above it the measured bandwidth cannot be right


@dataclass(frozen=True)
class Ceiling:
    """The most tokens a second of plain decoding behind `depth` tokens."""

    depth: int
    bytes_per_token: int
    tokens_per_s: float


@dataclass(frozen=True)
class Standing:
    """A measured decode beside its ceiling; `share` is of that ceiling."""

    depth: int
    tokens_per_s: float
    share: float


@dataclass(frozen=True)
class Roofline:
    """`free_rows` is how many rows one pass could verify before arithmetic takes longer than reading the weights.

    None of it depends on how well a kernel does; `standing` shows that, where a decode was measured.
    """

    gb_s: float
    tflop_s: float | None
    traffic: Traffic
    start: Ceiling
    given: Ceiling | None
    window: Ceiling
    free_rows: float | None
    standing: Standing | None
    verdict: str

    @property
    def ceilings(self) -> tuple[Ceiling, ...]:
        """In order of depth."""
        found = (self.start, self.given, self.window)
        return tuple(sorted((one for one in found if one), key=lambda one: one.depth))

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def roofline(
    traffic: Traffic,
    gb_s: float,
    tflop_s: float | None = None,
    *,
    depth: int | None = None,
    decoded: tuple[int, float | None] | None = None,
) -> Roofline:
    """What `gb_s` (10⁹ bytes a second read) and `tflop_s` (10¹² operations a second) allow.

    `decoded` is a depth and the tokens a second that were measured there, None where there was nothing to measure.
    """

    def ceiling(depth: int) -> Ceiling:
        moved = traffic.bytes_per_token(depth)
        return Ceiling(depth, moved, min(gb_s * 1e9 / moved, _arithmetic_bound(traffic, tflop_s)))

    given = None if depth is None else ceiling(min(depth, traffic.context_window))
    standing = None
    if decoded is not None and decoded[1]:
        at, rate = decoded[0], float(decoded[1])
        standing = Standing(at, rate, rate / ceiling(at).tokens_per_s)
    free_rows = None
    if tflop_s is not None:
        free_rows = (traffic.weight_bytes / (gb_s * 1e9)) * _arithmetic_bound(traffic, tflop_s)
    start, window = ceiling(0), ceiling(traffic.context_window)
    seen = next((one for one in (given, start) if one), start)
    return Roofline(
        gb_s, tflop_s, traffic, start, given, window, free_rows, standing, _verdict(traffic, seen, free_rows, standing)
    )


def _arithmetic_bound(traffic: Traffic, tflop_s: float | None) -> float:
    """Tokens a second that arithmetic alone allows: a multiplication and an addition for each weight."""
    return float("inf") if tflop_s is None else tflop_s * 1e12 / (2 * traffic.weights)


def _verdict(traffic: Traffic, seen: Ceiling, free_rows: float | None, standing: Standing | None) -> str:
    rate = f"{seen.tokens_per_s:.3g} tokens/s at depth {seen.depth:,}"
    if free_rows is not None and free_rows < 1:
        return f"Arithmetic binds, even for one row: at most {rate}, and speculation has no free rows to use."
    weights = traffic.weight_bytes / seen.bytes_per_token
    what = f"reading the weights ({weights:.0%} of the bytes)"
    if weights < 0.5:
        what = f"reading the context ({1 - weights:.0%} of the bytes)"
    text = f"Memory binds, {what}: at most {rate}"
    if standing is None:
        return f"{text}."
    place = f"decoding at {standing.tokens_per_s:.3g} stands at {standing.share:.0%} of its ceiling"
    if standing.share > OVER:
        return f"{text}, but {place}: the bandwidth was measured too low, so measure again on a quiet machine."
    if standing.share >= NEAR:
        return f"{text}, and {place}."
    return (
        f"Neither memory nor arithmetic alone binds: at most {rate}, and {place}; kernels, their launches or other "
        "programs take the rest."
    )
