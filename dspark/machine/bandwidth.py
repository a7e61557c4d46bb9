"""How fast this machine moves memory, in GB/s (10⁹ bytes), measured where MLX would compute.

A copy streams through buffers far larger than the caches and counts what is read and what is written, so that a GPU and
a CPU can be compared with each other, with STREAM and with a published figure. A second pass only reads, which is all
that decoding does with weights. The best pass counts, as in STREAM: whatever else runs can only slow one down, and the
figure is to be a ceiling.
"""

import ctypes
import logging
import mmap
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
BUDGET_S = 1.0


@dataclass(frozen=True)
class Bandwidth:
    """Memory traffic in 10⁹ bytes a second, and how the figure came about.

    `gb_s` is of a copy, `read_gb_s` of reading alone (None where it was not measured).
    """

    gb_s: float
    method: str
    source: Literal["measured", "published"]
    read_gb_s: float | None = None

    @property
    def ceiling_gb_s(self) -> float:
        """What reading can reach at most."""
        return max(self.gb_s, self.read_gb_s or 0.0)


def measure(machine: Machine) -> Bandwidth:
    """Measures on the GPU when MLX uses one and it works, else on all CPU cores. Takes some seconds at most."""
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
    """memmove and memchr release the interpreter lock; each thread works on its own part of the buffers."""
    # Mapped, not created by ctypes, which would write both full of zeros and let no other thread run meanwhile.
    source, target = ((ctypes.c_char * size).from_buffer(mmap.mmap(-1, size)) for _ in range(2))
    part = size // threads
    find = ctypes.CDLL(None).memchr
    find.argtypes, find.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), ctypes.c_void_p

    def copy(index: int) -> None:
        start = index * part
        ctypes.memmove(ctypes.byref(target, start), ctypes.byref(source, start), part)

    def read(index: int) -> None:
        find(ctypes.addressof(source) + index * part, 0, part)  # there is none, so it reads to the end

    # Pages that were never written all show the same zeros, from the cache.
    ctypes.memset(source, 1, size)
    with ThreadPoolExecutor(threads) as pool:
        copying = _best_seconds(lambda: list(pool.map(copy, range(threads))))
        reading = _best_seconds(lambda: list(pool.map(read, range(threads))))
    noun = "thread" if threads == 1 else "threads"
    method = f"copy of {size >> 20} MiB on {threads} CPU {noun}, read and written bytes, best pass"
    moved = part * threads
    return Bandwidth(_gb_s(2 * moved, copying), method, "measured", _gb_s(moved, reading))


def _on_gpu(size: int) -> Bandwidth:
    import mlx.core as mx

    source = mx.ones(size // 4, dtype=mx.float32)
    mx.eval(source)

    def copy() -> None:
        array = source
        for _ in range(GPU_PASSES):
            array = array + 1.0
        mx.eval(array)

    def read() -> None:
        mx.eval([mx.max(source) for _ in range(GPU_PASSES)])

    copying, reading = _best_seconds(copy) / GPU_PASSES, _best_seconds(read) / GPU_PASSES
    method = f"element-wise pass over {size >> 20} MiB on the GPU, read and written bytes, best pass"
    return Bandwidth(_gb_s(2 * size, copying), method, "measured", _gb_s(size, reading))


def _gb_s(moved_bytes: int, seconds: float) -> float:
    return round(moved_bytes / seconds / 1e9, 1)


def _best_seconds(action: Callable[[], object]) -> float:
    """Time of the best run after one that is not counted, within the time budget but never of fewer than three."""
    action()
    times: list[float] = []
    end = time.perf_counter() + BUDGET_S
    while len(times) < 3 or (len(times) < REPEATS and time.perf_counter() < end):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)
