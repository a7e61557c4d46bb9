"""What the server knows of its machine: facts, read once; bandwidth, measured once; memory from moment to moment."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from dspark.machine import describe, platform
from dspark.machine.bandwidth import Bandwidth, from_specification, measure
from dspark.machine.chips import published
from dspark.machine.facts import Machine, Memory

MEMORY_FRESH_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class Hardware:
    """Safe from any thread, but for `measure_bandwidth`, which is for the worker's alone.

    `measuring` off leaves the bandwidth unknown.
    """

    def __init__(self, *, measuring: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._measuring = measuring
        self._clock = clock
        self._lock = threading.Lock()
        self._machine: Machine | None = None
        self._memory: tuple[float, Memory] | None = None
        self._bandwidth: Bandwidth | None = None

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
    def bandwidth(self) -> Bandwidth | None:
        """What was measured, if it was."""
        return self._bandwidth

    def published_bandwidth(self) -> Bandwidth | None:
        """What Apple says of this chip."""
        chip = self.machine().chip
        row = published(chip.name, chip.gpu_cores)
        return from_specification(row) if row else None

    def measure_bandwidth(self) -> None:
        """Measure it, once a process; takes up to two seconds."""
        if not self._measuring or self._bandwidth is not None:
            return
        try:
            self._bandwidth = measure(self.machine())
        except Exception as error:  # without it no ceiling can be told, and all else goes on
            _logger.warning("the memory bandwidth could not be measured: %s", error)


def swap_used_bytes() -> int | None:
    """In microseconds, so that it can be read around every request."""
    import psutil

    try:
        return int(psutil.swap_memory().used)
    except (psutil.Error, OSError, RuntimeError):
        return None
