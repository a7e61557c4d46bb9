"""Whether something fits into this machine's memory: in principle, and as it is used now."""

from dataclasses import dataclass
from typing import Literal

from dspark.machine.facts import Machine

Verdict = Literal["fits", "tight", "not now", "too large", "unknown"]
TIGHT = 0.9


@dataclass(frozen=True)
class Room:
    """`limit_bytes` is the most that a model may ever take, `free_bytes` what is free now; `binds` names the limit."""

    limit_bytes: int | None
    free_bytes: int | None
    binds: str

    def verdict(self, need_bytes: int | None) -> Verdict:
        """How `need_bytes` more than is used now go with it; tight is above nine tenths of what there is."""
        if need_bytes is None or self.limit_bytes is None:
            return "unknown"
        if need_bytes > self.limit_bytes:
            return "too large"
        if self.free_bytes is not None and need_bytes > self.free_bytes:
            return "not now"
        least = self.limit_bytes if self.free_bytes is None else min(self.limit_bytes, self.free_bytes)
        return "tight" if need_bytes > TIGHT * least else "fits"


def room(machine: Machine) -> Room:
    """The GPU's recommended working set where MLX computes on one, otherwise all memory."""
    memory, runtime = machine.memory, machine.runtime
    if runtime.device == "gpu" and runtime.working_set_bytes:
        return Room(runtime.working_set_bytes, memory.available_bytes, "the GPU's working set")
    return Room(memory.total_bytes, memory.available_bytes, "the machine's memory")
