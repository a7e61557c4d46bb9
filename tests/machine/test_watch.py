"""The one reading of load, swap, pressure, power and heat that all measurements share."""

import time

import pytest

from dspark import machine
from dspark.machine import watch
from dspark.machine.facts import Chip, Memory, Power, System
from dspark.machine.watch import Conditions, Watch

CALM = Conditions(
    others_cpu=0.05,
    swapped_in_bytes=0,
    swapped_out_bytes=0,
    swap_used_bytes=12 << 30,
    pressure="normal",
    power_source="mains",
    power_mode="high",
    thermal="nominal",
)


class Changing:
    """A machine whose memory is read twice."""

    def __init__(self, *memories: Memory, power: Power | None = None) -> None:
        self._memories = list(memories)
        self._power = power or Power()

    def chip(self) -> Chip:
        return Chip()

    def system(self) -> System:
        return System("macOS")

    def memory(self) -> Memory:
        return self._memories.pop(0)

    def power(self) -> Power:
        return self._power


def test_this_machine_is_read_anew() -> None:
    seen = machine.conditions(seconds=0.01)
    assert seen.others_cpu is None or 0 <= seen.others_cpu <= 1
    assert seen.swapped_in_bytes is None or seen.swapped_in_bytes >= 0


def test_a_span_has_what_moved_in_it_and_the_rest_as_it_stands_at_its_end() -> None:
    here = Changing(
        Memory(pressure="normal", swap_used_bytes=0, swapped_in_bytes=100, swapped_out_bytes=10),
        Memory(pressure="warning", swap_used_bytes=70, swapped_in_bytes=140, swapped_out_bytes=80),
        power=Power("battery", "low", "heavy"),
    )
    with Watch(here) as watched:
        time.sleep(0.01)
    seen = watched.conditions
    assert (seen.swapped_in_bytes, seen.swapped_out_bytes, seen.swap_used_bytes) == (40, 70, 70)
    assert (seen.pressure, seen.power_source, seen.power_mode, seen.thermal) == ("warning", "battery", "low", "heavy")


def test_n9_a_counter_that_went_backwards_is_no_swapping() -> None:
    with Watch(Changing(Memory(swapped_in_bytes=100), Memory(swapped_in_bytes=40))) as watched:
        pass
    assert watched.conditions.swapped_in_bytes == 0


def test_k8_what_cannot_be_read_is_unknown_and_disturbs_nothing() -> None:
    with Watch(Changing(Memory(), Memory())) as watched:
        pass
    assert watched.conditions.pressure is None
    assert watched.conditions.swapped_in_bytes is None
    assert Conditions().disturbances() == ()


def test_the_share_is_of_all_cores_and_never_above_one() -> None:
    assert watch._share(10_000.0) == 1.0
    assert watch._share(0.0) == 0.0
    assert watch._share(None) is None


def test_a_calm_machine_has_no_disturbances() -> None:
    assert CALM.disturbances() == ()  # what lies in swap from earlier is not in the way


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"others_cpu": 0.5}, "busy", "50%"),
        ({"swapped_in_bytes": 1 << 30}, "swapped", "1,024 MB"),
        ({"swapped_out_bytes": 1 << 30}, "swapped", "1,024 MB"),
        ({"pressure": "critical"}, "pressure", "critical"),
        ({"power_source": "battery"}, "battery", "plug it in"),
        ({"power_mode": "low"}, "low power", "turn it off"),
        ({"thermal": "moderate"}, "hot", "moderate"),
    ],
)
def test_each_disturbance_is_one_sentence_with_a_remedy(change: dict[str, object], kind: str, words: str) -> None:
    disturbed = Conditions(**{**vars(CALM), **change})
    assert list(disturbed.disturbed_by()) == [kind]
    (sentence,) = disturbed.disturbances()
    assert words in sentence and ";" in sentence and "\n" not in sentence
