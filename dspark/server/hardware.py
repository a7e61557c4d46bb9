"""What the server knows of its machine: facts, read once; speeds, measured once; memory, from moment to moment."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dspark.machine import capability, describe, platform
from dspark.machine.bandwidth import Bandwidth, from_specification
from dspark.machine.capability import Capability
from dspark.machine.chips import published
from dspark.machine.facts import Machine, Memory

if TYPE_CHECKING:
    from dspark.targets.traffic import Traffic
    from dspark.tuning.roofline import Roofline

MEMORY_FRESH_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class Hardware:
    """Safe from any thread, but for `measure`, which is for the worker's alone.

    `measuring` off leaves the speeds unknown.
    """

    def __init__(self, *, measuring: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._measuring = measuring
        self._clock = clock
        self._lock = threading.Lock()
        self._machine: Machine | None = None
        self._memory: tuple[float, Memory] | None = None
        self._measured: Capability | None = None

    def memory(self) -> Memory:
        """As it stands, not older than `MEMORY_FRESH_SECONDS`."""
        with self._lock:
            now = self._clock()
            if self._memory is None or now - self._memory[0] > MEMORY_FRESH_SECONDS:
                self._memory = now, platform.current().memory()
            return self._memory[1]

    def machine(self) -> Machine:
        """All facts. The first call imports MLX where it is installed."""
        if self._machine is None:
            self._machine = describe()
        return replace(self._machine, memory=self.memory())

    @property
    def measured(self) -> Capability | None:
        """What was measured, if it was."""
        return self._measured

    def published_bandwidth(self) -> Bandwidth | None:
        """What Apple says of this chip."""
        chip = self.machine().chip
        row = published(chip.name, chip.gpu_cores)
        return from_specification(row) if row else None

    def measure(self) -> None:
        """Measure bandwidth and arithmetic, once a process; takes some seconds."""
        if not self._measuring or self._measured is not None:
            return
        try:
            self._measured = capability.measure()
        except Exception as error:  # without it no ceiling can be told, and all else goes on
            _logger.warning("the machine could not be measured: %s", error)

    def roofline(
        self, traffic: "Traffic | None", depth: int | None = None, rate: float | None = None
    ) -> "Roofline | None":
        """What the measured speeds allow a model; `rate` in tokens a second was reached at `depth`."""
        from dspark.tuning.roofline import roofline

        found = self._measured
        if found is None or traffic is None:
            return None
        arithmetic = found.arithmetic.tflop_s if found.arithmetic else None
        decoded = None if depth is None or rate is None else (depth, rate)
        return roofline(traffic, found.bandwidth.ceiling_gb_s, arithmetic, depth=depth, decoded=decoded)
