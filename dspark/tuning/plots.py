"""What is worth drawing: the roofline and cost curves, as plain series that any renderer can take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dspark.tuning.roofline import Roofline

Point = tuple[float, float]
WIDEST_ROWS = 64
DEPTH_STEPS = 24


@dataclass(frozen=True)
class Series:
    """Points in order of x, to be joined by a line unless they are `marks`."""

    label: str
    points: tuple[Point, ...]
    marks: bool = False


@dataclass(frozen=True)
class Plot:
    """`log` makes both axes logarithmic; then every coordinate is above 0."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log: bool = False


def roofline_plot(found: Roofline, name: str) -> Plot:
    """Attainable speed over arithmetic intensity, with passes of 1 row and more through the model as marks.

    Without measured arithmetic only the slope of memory is known.
    """
    step = 2 * found.traffic.weights / found.start.bytes_per_token
    widths = [2**power for power in range(WIDEST_ROWS.bit_length())]
    marks = tuple((step * rows, _attainable(found, step * rows)) for rows in widths)
    corner = [] if found.tflop_s is None else [found.tflop_s * 1e3 / found.gb_s]
    ends = sorted({step / 2, *corner, step * WIDEST_ROWS * 2})
    series = [
        Series("roof", tuple((x, _attainable(found, x)) for x in ends)),
        Series(f"{name}, 1 to {WIDEST_ROWS} rows a pass", marks, marks=True),
    ]
    if found.standing is not None:
        at = found.standing
        moved = found.traffic.bytes_per_token(at.depth)
        speed = at.tokens_per_s * 2 * found.traffic.weights / 1e9
        series.append(Series("measured decode", ((2 * found.traffic.weights / moved, speed),), marks=True))
    return Plot("roofline", "operations per byte", "GFLOP/s", tuple(series), log=True)


def ceilings_plot(found: Roofline, name: str) -> Plot:
    """The ceiling of plain decoding over the depth of the context."""
    window = found.traffic.context_window
    depths = sorted({window * step // DEPTH_STEPS for step in range(DEPTH_STEPS + 1)})
    rates = tuple((float(depth), found.gb_s * 1e9 / found.traffic.bytes_per_token(depth)) for depth in depths)
    if found.tflop_s is not None:
        most = found.tflop_s * 1e12 / (2 * found.traffic.weights)
        rates = tuple((depth, min(rate, most)) for depth, rate in rates)
    series = [Series(f"{name}, ceiling", rates)]
    if found.standing is not None:
        series.append(
            Series("measured decode", ((float(found.standing.depth), found.standing.tokens_per_s),), marks=True)
        )
    return Plot("decoding", "depth in tokens", "tokens/s", tuple(series))


def curves_plot(curves: Mapping[str, Sequence[Point]], *, title: str, x_label: str, y_label: str) -> Plot:
    """Measured curves, such as the time of a verification over its width, one for each label."""
    series = tuple(Series(label, tuple(sorted(points))) for label, points in curves.items())
    return Plot(title, x_label, y_label, series)


def _attainable(found: Roofline, intensity: float) -> float:
    """GFLOP/s at so many operations per byte."""
    speed = found.gb_s * intensity
    return speed if found.tflop_s is None else min(speed, found.tflop_s * 1e3)
