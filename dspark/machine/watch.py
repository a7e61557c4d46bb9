"""How things stand on this machine while something is measured: load, swap, pressure, power and heat.

One reading for every command and for the server, taken anew each time it is asked for.
"""

import os
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from dspark.machine import platform
from dspark.machine.facts import PowerMode, PowerSource, Pressure, Thermal
from dspark.machine.load import busy_cores, cpu_times
from dspark.machine.platform import Platform

BUSY_SHARE = 0.2
SWAPPED_BYTES = 16 * 2**20  # stray pages come back all the time
GLANCE_S = 0.2

Disturbance = Literal["busy", "swapped", "pressure", "battery", "low power", "hot"]


@dataclass(frozen=True)
class Conditions:
    """Load and swap over a span of time, the rest as it stood at its end. None where the system does not tell.

    `others_cpu` is the share of all processor cores that other programs used, 0 to 1; `swapped_in_bytes` and
    `swapped_out_bytes` are what moved from and to swap meanwhile, `swap_used_bytes` what lies there.
    """

    others_cpu: float | None = None
    swapped_in_bytes: int | None = None
    swapped_out_bytes: int | None = None
    swap_used_bytes: int | None = None
    pressure: Pressure | None = None
    power_source: PowerSource | None = None
    power_mode: PowerMode | None = None
    thermal: Thermal | None = None

    def disturbances(self) -> tuple[str, ...]:
        """What spoils a measurement now, a sentence each with its remedy; empty when nothing is known to."""
        return tuple(self.disturbed_by().values())

    def disturbed_by(self) -> dict[Disturbance, str]:
        """The same by kind."""
        found: dict[Disturbance, str] = {}
        if self.others_cpu is not None and self.others_cpu > BUSY_SHARE:
            found["busy"] = f"other programs used {self.others_cpu:.0%} of the processor; close them and measure again"
        moved = (self.swapped_in_bytes or 0) + (self.swapped_out_bytes or 0)
        if moved > SWAPPED_BYTES:
            found["swapped"] = (
                f"{moved / 2**20:,.0f} MB moved between memory and swap: the model may not fit; close other programs "
                "or take a smaller quantization"
            )
        if self.pressure in ("warning", "critical"):
            found["pressure"] = f"memory pressure is {self.pressure}; close programs before measuring"
        if self.power_source == "battery":
            found["battery"] = "the machine runs on battery; plug it in before measuring"
        if self.power_mode == "low":
            found["low power"] = "low power mode is on; turn it off in the system's energy settings before measuring"
        if self.thermal not in (None, "nominal"):
            found["hot"] = f"the machine is hot (thermal pressure {self.thermal}); let it cool before measuring"
        return found


class Watch:
    """Context manager around a measurement; `conditions` is there after it, `so_far()` within it."""

    conditions = Conditions()

    def __init__(self, here: Platform | None = None) -> None:
        self._here = here or platform.current()

    def __enter__(self) -> "Watch":
        self._cpu, self._memory = cpu_times(), self._here.memory()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.conditions = self.so_far()

    def so_far(self) -> Conditions:
        """The conditions since the watch began."""
        others = _share(busy_cores(self._cpu, cpu_times()))
        before, now, power = self._memory, self._here.memory(), self._here.power()
        return Conditions(
            others_cpu=others,
            swapped_in_bytes=_since(before.swapped_in_bytes, now.swapped_in_bytes),
            swapped_out_bytes=_since(before.swapped_out_bytes, now.swapped_out_bytes),
            swap_used_bytes=now.swap_used_bytes,
            pressure=now.pressure,
            power_source=power.source,
            power_mode=power.mode,
            thermal=power.thermal,
        )


def glance(here: Platform | None = None, seconds: float = GLANCE_S) -> Conditions:
    """The conditions over the next moment."""
    with Watch(here) as watch:
        time.sleep(seconds)
    return watch.conditions


def _share(cores: float | None) -> float | None:
    return None if cores is None else min(cores / (os.cpu_count() or 1), 1.0)


def _since(before: int | None, after: int | None) -> int | None:
    # The counters can go backwards, when a swap device is removed.
    return None if before is None or after is None else max(after - before, 0)
