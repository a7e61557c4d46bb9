"""When memory is given back: pressure sequences, as recorded and as hypothesis makes them up."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dspark.machine.ceilings import Ceiling
from dspark.memory.policy import CALM_S, LADDER, REARM_S, Stand, decide, level

GB = 10**9
# (seconds since the one before, level)
readings = st.lists(
    st.tuples(st.floats(0, 60), st.sampled_from([None, "normal", "warning", "critical"])), min_size=1, max_size=60
)


def play(sequence):
    """(time, level, steps) of each reading of (seconds, level)."""
    stand, now, told = Stand(), 1000.0, []
    for seconds, seen in sequence:
        now += seconds
        stand, steps = decide(stand, seen, now)
        told.append((now, seen, steps))
    return told


def test_k4_a_warning_gives_back_the_cheapest_first_and_more_only_where_it_lasts():
    lasting = play([(0, "warning")] + [(REARM_S, "warning")] * 6)
    assert [steps for _, _, steps in lasting] == [("allocator",), ("rungs",), ("older",), (), (), (), ()]


def test_k4_a_warning_that_passes_costs_no_conversation():
    assert [steps for _, _, steps in play([(0, "warning"), (2, "normal"), (2, "normal")])] == [("allocator",), (), ()]


def test_k4_warn_then_critical_gives_back_everything_at_once_cheapest_first():
    assert [steps for _, _, steps in play([(0, "warning"), (1, "critical"), (1, "critical")])] == [
        ("allocator",),
        LADDER,
        (),
    ]


def test_a_flapping_pressure_does_not_shed_at_each_edge():
    told = play([(0, "warning")] + [(2, "normal"), (2, "warning")] * 3)
    assert [step for _, _, steps in told for step in steps] == ["allocator"]


def test_nothing_is_latched_once_it_was_calm():
    told = play([(0, "critical"), (REARM_S, "normal"), (CALM_S, "normal"), (1, "warning")])
    assert told[-1][2] == ("allocator",)


@given(readings)
def test_k8_nothing_is_done_at_normal_or_unknown(sequence):
    assert all(not steps for _, seen, steps in play(sequence) if seen in (None, "normal"))


@given(readings)
def test_a_warning_alone_never_takes_the_last_step(sequence):
    assert all("all" not in steps for _, seen, steps in play(sequence) if seen == "warning")


@given(readings)
def test_no_step_is_repeated_within_the_delay(sequence):
    last: dict[str, float] = {}
    for now, seen, steps in play(sequence):
        for step in steps:
            # Only the first critical after a warning takes a step that was just taken again.
            assert step not in last or now - last[step] >= REARM_S or seen == "critical"
            last[step] = now
    everything = [now for now, _, steps in play(sequence) if "all" in steps]
    assert all(after - before >= REARM_S for before, after in pairwise(everything))


@given(readings)
def test_a_critical_reading_is_never_left_alone_for_longer_than_the_delay(sequence):
    last = None
    for now, seen, steps in play(sequence):
        if seen == "critical" and not steps:
            assert last is not None and now - last < REARM_S
        if "all" in steps:
            last = now


@given(readings)
def test_steps_come_cheapest_first(sequence):
    assert all(list(steps) == sorted(steps, key=LADDER.index) for _, _, steps in play(sequence))


def hard(free, limit=32 * GB):
    return Ceiling("the container's memory limit", "raise that limit", limit, free, limit // 32)


def test_the_worse_of_pressure_and_a_hard_ceiling_counts():
    assert level("normal", [hard(10 * GB)]) == "normal"
    assert level("normal", [hard(int(1.5 * GB))]) == "warning"
    assert level("warning", [hard(GB // 2)]) == "critical"
    assert level(None, [hard(GB // 2)]) == "critical"


def test_k8_without_a_reading_the_level_is_unknown():
    assert level(None, []) is None
    assert level(None, [hard(10 * GB)]) is None
