"""Holds `mlx-dspark machine`'s bandwidth against a triad in numpy on all cores, both in one run.

    python tests/benchmarks/triad.py [--json results/triad.json]

The triad a = b + s * c counts three streams, as STREAM does: b and c read, a written. Numpy has no one call for it, so
it goes in blocks that a core's own cache holds between multiplying and adding: each array is streamed once, as in
STREAM. The two take turns and the best of each counts. Run it on a quiet machine all the same: where memory is shared
with other machines, its rate can halve for minutes.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dspark.machine import bandwidth, describe, stamp

ELEMENTS = 1 << 25  # 256 MiB an array
BLOCK = 1 << 15  # elements: 256 KiB, so that a block of each array fits in a core's second-level cache
TURNS = 10
PASSES = 4  # of the triad, a turn


def triad(threads: int) -> float:
    """GB/s of the best pass."""
    a, b, c = (np.full(ELEMENTS, value) for value in (0.0, 1.0, 2.0))
    parts = [range(ELEMENTS * index // threads, ELEMENTS * (index + 1) // threads, BLOCK) for index in range(threads)]

    def work(part: range) -> None:
        for start in part:
            block = slice(start, min(start + BLOCK, part.stop))
            np.multiply(c[block], 3.0, out=a[block])
            np.add(a[block], b[block], out=a[block])

    times = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(PASSES):
            start = time.perf_counter()
            list(pool.map(work, parts))
            times.append(time.perf_counter() - start)
    return 3 * a.nbytes / min(times) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    machine = describe()
    threads = machine.chip.usable_cores or os.cpu_count() or 1
    rounds = [(triad(threads), bandwidth.measure(machine)) for _ in range(TURNS)]
    triads, measured = max(rate for rate, _ in rounds), max((one for _, one in rounds), key=lambda one: one.gb_s)
    print(f"triad     {triads:6.1f} GB/s on {threads} threads, three streams counted")
    print(f"machine   {measured.gb_s:6.1f} GB/s, {measured.method}")
    print(f"ratio     {measured.gb_s / triads:6.2f}")
    if args.json:
        command = ["tests/benchmarks/triad.py", *sys.argv[1:]]
        found = {"triad_gb_s": round(triads, 1), "machine": asdict(measured), "ratio": round(measured.gb_s / triads, 3)}
        args.json.write_text(json.dumps({"command": command, "stamp": stamp(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
