"""Holds `mlx-dspark machine`'s bandwidth against a triad in numpy on all cores, both in one run.

    python tests/benchmarks/triad.py

The triad a = b + s * c counts three streams, as STREAM does: b and c read, a written. Numpy takes two passes for it and
the processor fetches a before writing it, which are not counted. Run it on a quiet machine: the two take turns, but
what another program does to one turn it need not do to the next.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dspark.machine import bandwidth, describe

ELEMENTS = 1 << 25  # 256 MiB an array
TURNS = 6
PASSES = 4  # of the triad, a turn


def triad(threads: int) -> float:
    """GB/s of the best pass."""
    a, b, c = (np.full(ELEMENTS, value) for value in (0.0, 1.0, 2.0))
    parts = [slice(ELEMENTS * index // threads, ELEMENTS * (index + 1) // threads) for index in range(threads)]

    def work(part: slice) -> None:
        np.multiply(c[part], 3.0, out=a[part])
        np.add(a[part], b[part], out=a[part])

    times = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(PASSES):
            start = time.perf_counter()
            list(pool.map(work, parts))
            times.append(time.perf_counter() - start)
    return 3 * a.nbytes / min(times) / 1e9


def main() -> None:
    machine = describe()
    threads = machine.chip.usable_cores or os.cpu_count() or 1
    rounds = [(triad(threads), bandwidth.measure(machine)) for _ in range(TURNS)]
    triads, measured = max(rate for rate, _ in rounds), max((one for _, one in rounds), key=lambda one: one.gb_s)
    print(f"triad     {triads:6.1f} GB/s on {threads} threads, three streams counted")
    print(f"machine   {measured.gb_s:6.1f} GB/s, {measured.method}")
    print(f"ratio     {measured.gb_s / triads:6.2f}")


if __name__ == "__main__":
    main()
