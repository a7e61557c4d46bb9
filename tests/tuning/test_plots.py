from test_roofline import TRAFFIC

from dspark.tuning.plots import ceilings_plot, curves_plot, roofline_plot
from dspark.tuning.roofline import roofline


def test_the_roof_has_its_corner_where_memory_and_arithmetic_meet() -> None:
    roof, passes = roofline_plot(roofline(TRAFFIC, 400.0, 8.0), "a model").series
    assert (20.0, 8000.0) in roof.points
    assert passes.marks and passes.points[0] == (4.0, 1600.0)
    assert passes.points[-1] == (256.0, 8000.0)


def test_without_arithmetic_there_is_only_the_slope() -> None:
    roof, _ = roofline_plot(roofline(TRAFFIC, 400.0), "a model").series
    assert all(y == 400.0 * x for x, y in roof.points)


def test_a_measured_decode_is_marked_in_both() -> None:
    found = roofline(TRAFFIC, 400.0, 80.0, decoded=(0, 75.0))
    assert roofline_plot(found, "a model").series[-1].points == ((4.0, 1200.0),)
    assert ceilings_plot(found, "a model").series[-1].points == ((0.0, 75.0),)


def test_ceilings_run_over_the_whole_window() -> None:
    (line,) = ceilings_plot(roofline(TRAFFIC, 400.0), "a model").series
    assert (line.points[0], line.points[-1][0]) == ((0.0, 100.0), 40_000.0)


def test_curves_are_drawn_in_order() -> None:
    plot = curves_plot({"verify": [(4, 20.0), (1, 10.0)]}, title="costs", x_label="rows", y_label="ms")
    assert plot.series[0].points == ((1, 10.0), (4, 20.0))
    assert (plot.title, plot.log) == ("costs", False)
