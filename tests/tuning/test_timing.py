"""Timing: statistics that one bad moment does not move. The clock is scripted, nothing is really timed."""

import pytest

from dspark.tuning.timing import LEAST_REPEATS, Stopwatch, robust


@pytest.fixture(autouse=True, scope="module")
def _as_shipped(unhurried):
    with unhurried():
        yield


class Clock:
    """A clock that moves only when an action takes its time."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def action(self, durations_ms):
        def act():
            self.now += next(durations_ms) / 1e3

        return act


def steady(ms):
    while True:
        yield ms


def test_b6_an_outlier_of_ten_times_is_left_out():
    found = robust([10.0, 10.1, 9.9, 10.0, 100.0, 10.05, 9.95])
    assert found.ms == pytest.approx(10.0, rel=0.01) and found.rejected == 1 and found.count == 6
    assert found.spread < 0.02


def test_equal_observations_have_no_spread_and_tiny_ones_no_outliers():
    assert robust([5.0] * 9).spread == 0.0
    assert robust([5.0] * 8 + [5.01]).rejected == 0
    assert robust([3.0]).ms == 3.0


def test_two_minds_are_bad():
    assert robust([8.0, 12.0, 8.0, 12.0, 8.0]).bad and not robust([8.0, 8.1, 8.0, 12.0, 8.0]).bad


def test_b17_actions_are_interleaved_so_that_a_slowing_clock_meets_all_alike():
    clock, heat, order = Clock(), [1.0], []

    def action(key, ms):
        def act():
            order.append(key)
            heat[0] *= 1.002
            clock.now += ms * heat[0] / 1e3

        return act

    found = Stopwatch(10.0, clock).table({1: action(1, 10.0), 2: action(2, 11.0), 3: action(3, 12.0)})
    assert order[:6] == [1, 2, 3, 1, 2, 3]
    assert found[2].ms / found[1].ms == pytest.approx(1.1, rel=0.01)
    assert found[3].ms / found[1].ms == pytest.approx(1.2, rel=0.01)


def test_warming_goes_on_until_it_no_longer_helps():
    clock = Clock()

    def cold():
        yield from (50.0, 30.0)
        yield from steady(10.0)

    assert Stopwatch(1.0, clock).table({1: clock.action(cold())})[1].ms == pytest.approx(10.0)


def test_a_scattered_point_is_measured_again():
    clock, passes = Clock(), []

    def noisy():
        while True:
            yield from (5.0, 15.0, 10.0, 7.0, 13.0)

    Stopwatch(0.1, clock, most=5).table(
        {1: clock.action(noisy()), 2: clock.action(steady(10.0))}, lambda: passes.append(1)
    )
    assert len(passes) > 2 * LEAST_REPEATS


def test_the_budget_bounds_the_repeats_but_leaves_enough():
    clock, passes = Clock(), []
    Stopwatch(0.001, clock).table({1: clock.action(steady(100.0))}, lambda: passes.append(1))
    assert LEAST_REPEATS <= len(passes) <= LEAST_REPEATS + 6
