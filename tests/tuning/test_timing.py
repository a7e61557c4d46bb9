"""Timing: statistics that one bad moment does not move. The clock is scripted, nothing is really timed."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.tuning.timing import LEAST_REPEATS, Stopwatch, level, robust


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


@given(st.lists(st.floats(0.5, 2.0), min_size=5, max_size=20), st.integers(0, 10**6))
def test_slow_passes_do_not_move_how_actions_compare(paces, seed):
    """Each pass has a pace of its own: raw medians would differ by their luck, what is left here is the small noise."""
    draw = random.Random(seed)
    true = {key: 10.0 + key for key in range(8)}
    passes = [{key: ms * pace * draw.uniform(0.999, 1.001) for key, ms in true.items()} for pace in paces]
    found = level(passes)
    for key, ms in true.items():
        assert found[key].ms / found[0].ms == pytest.approx(ms / true[0], rel=0.004)
        assert found[key].spread < 0.005
    assert min(paces) * 9.9 < found[0].ms < max(paces) * 10.1


def test_a_pass_of_few_actions_keeps_what_it_saw_and_a_stopped_clock_breaks_nothing():
    found = level([{1: 10.0, 2: 20.0}, {1: 30.0, 2: 60.0}, {1: 20.0, 2: 40.0}])
    assert found[1].ms == 20.0 and found[1].spread > 0.3
    assert level([dict.fromkeys(range(5), 0.0)] * 3)[4].ms == 0.0
    assert level([dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 0.0), {0: 1.0}])[0].ms > 0.0


def test_warming_goes_on_until_it_no_longer_helps():
    clock = Clock()

    def cold():
        yield from (50.0, 30.0)
        yield from steady(10.0)

    assert Stopwatch(1.0, clock).table({1: clock.action(cold())})[1].ms == pytest.approx(10.0)


def test_an_action_that_tells_its_own_time_is_believed():
    clock = Clock()

    def act():
        clock.now += 5.0
        return 20.0

    assert Stopwatch(1.0, clock).table({1: act})[1].ms == 20.0


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
