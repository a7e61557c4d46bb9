"""What this machine can do, measured in one go: the answer of `mlx-dspark machine` before any model is looked at."""

from dataclasses import asdict, dataclass
from typing import Any

from dspark.machine import arithmetic, bandwidth, chips, platform, runtime
from dspark.machine.arithmetic import Arithmetic
from dspark.machine.bandwidth import Bandwidth
from dspark.machine.facts import Machine
from dspark.machine.watch import Conditions, Watch


@dataclass(frozen=True)
class Capability:
    """`published` is None for a chip and GPU core count that is in no table, `arithmetic` without a working MLX.

    `conditions` are those while it was measured.
    """

    machine: Machine
    bandwidth: Bandwidth
    published: Bandwidth | None
    arithmetic: Arithmetic | None
    conditions: Conditions

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return self.machine.as_dict() | {
            "conditions": asdict(self.conditions),
            "disturbances": list(self.conditions.disturbances()),
            "bandwidth": asdict(self.bandwidth),
            "published_bandwidth": asdict(self.published) if self.published else None,
            "arithmetic": asdict(self.arithmetic) if self.arithmetic else None,
        }


def measure() -> Capability:
    """Read this machine and measure it; takes some seconds. MLX computes on the calling thread."""
    here = platform.current()
    found = Machine(here.chip(), here.system(), here.memory(), runtime.describe())
    row = chips.published(found.chip.name, found.chip.gpu_cores)
    with Watch(here) as watch:
        moved = bandwidth.measure(found)
        computed = arithmetic.measure()
    return Capability(found, moved, bandwidth.from_specification(row) if row else None, computed, watch.conditions)
