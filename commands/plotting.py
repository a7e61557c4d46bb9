"""Drawing plots: into a file with matplotlib, or with characters into the terminal."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dspark.tuning.plots import Plot

TERMINAL = "-"
ENDINGS = (".png", ".svg", ".pdf")
MARKS = "*o+x#@"
HEIGHT = 14
MARGIN = 9  # columns of the y axis


def check_target(target: str) -> None:
    """Refuse early what could not be drawn after minutes of measuring.

    Raises:
        UsageError: a file of no known kind, or matplotlib is not installed.
        StorageError: the folder is not there.
    """
    from importlib.util import find_spec

    from dspark.errors import StorageError, UsageError

    if target == TERMINAL:
        return
    path = Path(target)
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"--plot {target}: name a file that ends in {', '.join(ENDINGS)}, or - for the terminal")
    if find_spec("matplotlib") is None:
        raise UsageError(
            f"drawing {target} takes matplotlib: run python -m pip install 'mlx-dspark[plot]', or give --plot - to "
            "draw in the terminal"
        )
    if not path.absolute().parent.is_dir():
        raise StorageError(f"{path.parent} is not a folder; make it, or draw into another")


def write(plots: Sequence[Plot], path: Path) -> None:
    """Draw `plots` below each other into one file.

    Raises:
        StorageError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from dspark.errors import StorageError

    figure = Figure(figsize=(8, 4.5 * len(plots)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, plot in zip(figure.subplots(len(plots), squeeze=False)[:, 0], plots, strict=True):
        for series in plot.series:
            xs, ys = zip(*series.points, strict=True) if series.points else ((), ())
            axes.plot(xs, ys, label=series.label, marker="o", linestyle="" if series.marks else "-", markersize=4)
        axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
        if plot.log:
            axes.set(xscale="log", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}); draw into another folder") from error


def lines(plot: Plot, width: int, *, height: int = HEIGHT) -> list[str]:
    """`plot` as lines of ASCII of at most `width` columns: axes with their ends, and a legend."""
    drawn = [series for series in plot.series if series.points]
    columns = max(width - MARGIN - 2, 10)
    points = [point for series in drawn for point in series.points]
    if not points:
        return [f"{plot.title}: nothing to draw"]
    across = _scale([x for x, _ in points], columns, log=plot.log)
    up = _scale([y for _, y in points] + ([] if plot.log else [0.0]), height, log=plot.log)
    grid = [[" "] * columns for _ in range(height)]
    marks = [MARKS[index % len(MARKS)] for index in range(len(drawn))]
    for mark, series in zip(marks, drawn, strict=True):
        dots = [(across(x), up(y)) for x, y in series.points]
        for column, row in dots if series.marks else _joined(dots):
            grid[height - 1 - row][column] = mark
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low = min(ys) if plot.log else min(0.0, *ys)
    found = [f"{plot.title}: {plot.y_label} over {plot.x_label}{', logarithmic' if plot.log else ''}"]
    for index, row in enumerate(grid):
        label = {0: _number(max(ys)), height - 1: _number(low)}.get(index, "")
        found.append(f"{label:>{MARGIN}} |{''.join(row)}".rstrip())
    left, right = _number(min(xs)), _number(max(xs))
    found.append(f"{'':>{MARGIN}} +{'-' * columns}")
    found.append(f"{'':>{MARGIN}}  {left}{right:>{max(columns - len(left), len(right) + 1)}}")
    return found + [f"{'':>{MARGIN}}  {mark} {series.label}" for mark, series in zip(marks, drawn, strict=True)]


def _scale(values: list[float], cells: int, *, log: bool) -> Callable[[float], int]:
    place = math.log if log else float
    low, high = place(min(values)), place(max(values))

    def cell(value: float) -> int:
        return round((place(value) - low) / (high - low) * (cells - 1)) if high > low else 0

    return cell


def _joined(dots: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every column between neighbouring points, on the straight line that joins them."""
    found = dots[:1]
    for (left, low), (right, high) in pairwise(dots):
        steps = max(right - left, abs(high - low), 1)
        found += [
            (left + (right - left) * step // steps, round(low + (high - low) * step / steps))
            for step in range(1, steps + 1)
        ]
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
