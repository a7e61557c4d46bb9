"""How fast this machine moves memory, in GB/s (10⁹ bytes), measured where MLX would compute.

Both methods stream through buffers far larger than the caches and count what is read and what is written, so that a GPU
and a CPU can be compared with each other and with a published figure.
"""

import ctypes
import logging
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from dspark.machine.chips import Published
from dspark.machine.facts import Machine

log = logging.getLogger(__name__)

BUFFER_BYTES = 512 << 20  # well above any cache of an Apple chip or a server
MEMORY_SHARE = 8  # the two buffers together take at most a quarter of what is free
MIN_BUFFER_BYTES = 8 << 20
GPU_PASSES = 4  # in one submission, so that its launch does not count
REPEATS = 9
BUDGET_S = 1.5


@dataclass(frozen=True)
class Bandwidth:
    """Memory traffic in 10⁹ bytes a second, and how the figure came about."""

    gb_s: float
    method: str
    source: Literal["measured", "published"]


def measure(machine: Machine) -> Bandwidth:
    """Measures on the GPU when MLX uses one and it works, else on all CPU cores. Takes up to two seconds."""
    size = BUFFER_BYTES
    if machine.memory.available_bytes is not None:
        size = max(min(size, machine.memory.available_bytes // MEMORY_SHARE), MIN_BUFFER_BYTES)
    size -= size % (1 << 20)
    if machine.runtime.device == "gpu":
        try:
            return _on_gpu(size)
        except RuntimeError as error:  # a virtual GPU may refuse
            log.warning("the GPU could not be measured, so the CPU is: %s", error)
    return _on_cpu(size, machine.chip.usable_cores or machine.chip.cores or 1)


def from_specification(published: Published) -> Bandwidth:
    """The published figure in the same form."""
    return Bandwidth(published.bandwidth_gb_s, f"specification ({published.status})", "published")


def _on_cpu(size: int, threads: int) -> Bandwidth:
    """memmove releases the interpreter lock; each thread copies its own part of the buffers."""
    source, target = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    part = size // threads

    def copy(index: int) -> None:
        start = index * part
        ctypes.memmove(ctypes.byref(target, start), ctypes.byref(source, start), part)

    # Pages that were never written all show the same zeros, from the cache.
    ctypes.memset(source, 1, size)
    with ThreadPoolExecutor(threads) as pool:
        seconds = _median_seconds(lambda: list(pool.map(copy, range(threads))))
    noun = "thread" if threads == 1 else "threads"
    method = f"copy of {size >> 20} MiB on {threads} CPU {noun}, read and written bytes, median"
    return Bandwidth(round(2 * part * threads / seconds / 1e9, 1), method, "measured")


def _on_gpu(size: int) -> Bandwidth:
    import mlx.core as mx

    source = mx.ones(size // 4, dtype=mx.float32)
    mx.eval(source)

    def copy() -> None:
        array = source
        for _ in range(GPU_PASSES):
            array = array + 1.0
        mx.eval(array)

    seconds = _median_seconds(copy) / GPU_PASSES
    method = f"element-wise pass over {size >> 20} MiB on the GPU, read and written bytes, median"
    return Bandwidth(round(2 * size / seconds / 1e9, 1), method, "measured")


def _median_seconds(action: Callable[[], object]) -> float:
    """Median time of one run after two that are not counted, within the time budget but never fewer than three."""
    for _ in range(2):
        action()
    times: list[float] = []
    end = time.perf_counter() + BUDGET_S
    while len(times) < 3 or (len(times) < REPEATS and time.perf_counter() < end):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
