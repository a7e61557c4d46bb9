"""Whether something fits: the limit that binds, and what is free now."""

import pytest

from dspark.machine.facts import Chip, Machine, Memory, Runtime, System
from dspark.machine.room import Room, room

GB = 10**9


def machine(memory: Memory, **runtime: object) -> Machine:
    return Machine(Chip(), System("Darwin"), memory, Runtime("3.11", **runtime))  # type: ignore[arg-type]


def test_a_gpu_is_bound_by_its_working_set_and_a_cpu_by_all_memory():
    memory = Memory(total_bytes=24 * GB, available_bytes=20 * GB)
    gpu = room(machine(memory, device="gpu", working_set_bytes=17 * GB))
    assert (gpu.limit_bytes, gpu.free_bytes, gpu.binds) == (17 * GB, 20 * GB, "the GPU's working set")
    assert room(machine(memory, device="cpu", working_set_bytes=17 * GB)).limit_bytes == 24 * GB


@pytest.mark.parametrize(
    ("need", "verdict"), [(5, "fits"), (9.5, "tight"), (11, "not now"), (21, "too large"), (None, "unknown")]
)
def test_verdicts(need, verdict):
    assert Room(20 * GB, 10 * GB, "x").verdict(need and int(need * GB)) == verdict


def test_k8_a_machine_that_does_not_tell_gives_no_verdict():
    unknown = room(machine(Memory()))
    assert unknown.verdict(1) == "unknown"
    assert Room(20 * GB, None, "x").verdict(19 * GB) == "tight"
