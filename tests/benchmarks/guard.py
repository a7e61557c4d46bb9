"""The memory guard against what really happens: its estimate beside the measured peak, and requests at the edge.

    python tests/benchmarks/guard.py estimate --tokens 1024 4096 8192 --json results/guard-estimate.json
    python tests/benchmarks/guard.py edge --requests 200 --json results/guard-edge.json

`estimate` reads prompts of the demo pair. Weights and caches of it are all that MLX holds, so its peak memory is what
the guard foresaw plus what was held before; the ratio of the two peaks is told, and that of what was added alone.

`edge` runs a tiny model with long prompts under a real limit (ulimit -d, set for this process once the model is loaded,
so that the kernel refuses what passes it): every request must be answered or refused, and only what the estimate says
would not fit may be refused. A child with the guard off shows that the limit is real. The C library is told to give
large blocks back when they are freed (MALLOC_MMAP_THRESHOLD_): those it keeps count against the limit.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx

from dspark.decoding.events import Finished, PrefillProgress
from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import Engine, LoadOptions
from dspark.errors import InsufficientMemory
from dspark.machine import stamp
from dspark.machine.ceilings import hard_ceilings
from dspark.machine.platform import current

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny import write_llama

MB = 1 << 20
THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
VOCABULARY = 49152
EDGE_MODEL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "max_position_embeddings": 1 << 16,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["estimate", "edge"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 8191])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--room-mb", type=int, default=128)
    parser.add_argument("--guard", choices=["on", "off"], default="on")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what == "edge" and THRESHOLD not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, THRESHOLD: str(MB)})
    found = estimates(args.tokens) if args.what == "estimate" else edge(args.requests, args.room_mb, args.guard)
    text = json.dumps({"command": ["tests/benchmarks/guard.py", *sys.argv[1:]], "stamp": stamp(), **found}, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


def estimates(lengths: list[int]) -> dict[str, Any]:
    engine = Engine()
    engine.load(LoadOptions(model="demo", precision="fp32"))
    cost, rows = engine.prefill_cost(), []
    draw = random.Random(0)
    for mode in ("baseline", "dspark"):
        for tokens in lengths:
            prompt = [draw.randrange(100, VOCABULARY) for _ in range(tokens)]
            request = Request(prompt, max_tokens=1, speculation=SpeculationOptions(mode))
            mx.clear_cache()
            before = mx.get_active_memory()
            decoding = engine.start(request)
            mx.reset_peak_memory()
            for event in engine.run(decoding):
                if isinstance(event, PrefillProgress):
                    print(mode, event.processed, file=sys.stderr)
            measured, foreseen = mx.get_peak_memory(), before + cost.peak(tokens, 2048, ahead=1)
            del decoding
            rows.append(
                {
                    "mode": mode,
                    "tokens": tokens,
                    "held_before_bytes": before,
                    "estimated_peak_bytes": foreseen,
                    "measured_peak_bytes": measured,
                    "ratio": round(foreseen / measured, 4),
                    "ratio_of_added": round((foreseen - before) / (measured - before), 4),
                }
            )
    return {"pair": "demo fp32", "rows": rows}


def edge(requests: int, room_mb: int, guard: str) -> dict[str, Any]:
    draw, here = random.Random(7), current()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine()
        engine.load(LoadOptions(str(write_llama(Path(folder) / "edge", **EDGE_MODEL)), memory_guard=guard == "on"))
    plain = SpeculationOptions("baseline")
    list(engine.generate(Request([5] * 600, max_tokens=4, speculation=plain)))
    cost = engine.prefill_cost()
    without_guard = _unguarded(room_mb) if guard == "on" else None
    limit = _limit_data(room_mb * MB)
    outcomes = {"answered": 0, "shortened": 0, "refused": 0, "wrongly_refused": 0, "failed": 0}
    longest_answered, shortest_refused, first_refusal = 0, None, None
    longest = cost.longest(room_mb * MB, EDGE_MODEL["max_position_embeddings"] - 64)
    for _ in range(requests):
        tokens = draw.randrange(longest // 2, int(longest * 1.3))
        prompt = [draw.randrange(3, 60) for _ in range(tokens)]
        room = min(ceiling.room_bytes for ceiling in hard_ceilings(here))
        try:
            *_, last = engine.generate(Request(prompt, max_tokens=2, speculation=plain))
            assert isinstance(last, Finished) and last.statistics.completion_tokens >= 1
        except InsufficientMemory as error:
            outcomes["refused"] += 1
            first_refusal = first_refusal or str(error)
            shortest_refused = min(shortest_refused or tokens, tokens)
            outcomes["wrongly_refused"] += cost.chunk(room, tokens, 2048, ahead=2) is not None
        except RuntimeError as error:  # what MLX raises where the kernel gives it no memory
            outcomes["failed"] += 1
            print(f"failed at {tokens} tokens: {error}", file=sys.stderr)
        else:
            outcomes["answered"] += 1
            longest_answered = max(longest_answered, tokens)
    report = engine.memory().guard
    outcomes["shortened"] = report.shortened
    return {
        "limit": f"RLIMIT_DATA of {limit // MB} MB, {room_mb} MB of them free when it was set",
        "guard": guard,
        "requests": requests,
        "outcomes": outcomes,
        "longest_answered_tokens": longest_answered,
        "shortest_refused_tokens": shortest_refused,
        "first_refusal": first_refusal,
        "binds": report.binds,
        "without_guard": without_guard,
    }


def _limit_data(room_bytes: int) -> int:
    """Lets this process take so much more and no further; returns the limit in bytes."""
    status = Path("/proc/self/status").read_text()
    taken = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))
    limit = taken + room_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return limit


def _unguarded(room_mb: int) -> str:
    """How a child without the guard ends under the same limit."""
    command = [sys.executable, __file__, "edge", "--guard", "off", "--requests", "20", "--room-mb", str(room_mb)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return f"{json.loads(done.stdout)['outcomes']['failed']} of 20 requests failed"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return f"the process ended with status {done.returncode}: {last[:120]}"


if __name__ == "__main__":
    main()
