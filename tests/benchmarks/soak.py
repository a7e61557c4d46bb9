"""Hours of a server's life in minutes: many short requests, cancelled ones among them, and swaps of the model.

    python tests/benchmarks/soak.py --requests 20000 --json results/soak.json

Serves tiny models from a process of its own, one with a drafter and one that looks its drafts up, with small bounds on
what is remembered, so that evictions and files are part of it. Clients on several threads hold conversations that share
system prompts, grow, fork and are abandoned; some leave before, some during the answer. After every batch the model is
swapped for the other. Told are memory, threads and descriptors of the process after each batch, and whether all
counters add up. Exits 1 where they do not, or where something grows.

Memory is that of the process. glibc grows its heap in place and keeps the holes that freed arrays leave between small
objects, so that the heap's size rises with chance, in steps, while what is in use stays the same. To tell a leak from
that, the server is started with arrays mapped one by one (`HEAP`); `--plain-heap` leaves it as it is for users.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from dspark.machine import stamp

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
from live import write_drafter, write_target

CLIENTS = 4
LONGEST = 700  # characters of a conversation
ANSWER_TOKENS = 3
# Ways to be a client, with their weights: those that stay to the end, and those that leave after some time or frames.
WAYS = {"whole": 40, "stream": 40, "impatient": 10, "enough": 10}
CLOSING_S = 0.2  # in which the connections of the last requests are gone
GROWTH = 0.05  # of its memory that the process may gain over the run, warm-up left out
WARM_UP = 0.2  # share of the samples that do not count for the slope
HEAP = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10), "MALLOC_ARENA_MAX": "2"}
CHAT = "/v1/chat/completions"
LETTERS = "abcdefghij klmnopqrst uvwxyz."


@dataclass(frozen=True)
class Sample:
    """The process after so many requests, with nothing under way."""

    requests: int
    seconds: float
    rss_bytes: int
    threads: int
    descriptors: int
    kept_bytes: int
    kept_slots: int
    files: int


class Soak:
    """Asks a server at `url`, whose process is `pid`, that serves the first of `loads`, and then all in turn."""

    def __init__(self, url: str, pid: int, loads: Sequence[dict[str, Any]], *, seed: int = 0) -> None:
        self.samples: list[Sample] = []
        self.seen: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self._url = url
        self._process = psutil.Process(pid)
        self._loads = loads
        self._random = random.Random(seed)
        self._systems = [self._text(300) for _ in range(4)]
        self._conversations: list[list[dict[str, str]]] = []
        self._began = time.monotonic()
        self._lock = threading.Lock()
        # A connection for each request.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._clients = httpx.Client(base_url=url, trust_env=False, timeout=120, limits=limits)

    def run(self, requests: int, batch: int) -> None:
        """Ask so many requests, with a swap after each batch."""
        with httpx.Client(base_url=self._url, trust_env=False, timeout=120) as http:
            for at, begun in enumerate(range(0, requests, batch)):
                count = min(batch, requests - begun)
                with ThreadPoolExecutor(CLIENTS) as pool:
                    list(pool.map(self._ask, [self._question() for _ in range(count)]))
                self._sample(http, begun + count)
                http.post("/admin/load?wait=true", json=self._loads[(at + 1) % len(self._loads)]).raise_for_status()

    def report(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """What became of it, for the server's last `/metrics`."""
        kept = self.samples[int(len(self.samples) * WARM_UP) :]
        counted, sent, totals = metrics["requests"], self.seen["sent"], self.totals
        answered = self.seen["answered"]
        checks = {
            "every request is in one counter": sum(counted.values()) == sent,
            "every answer that a client read was completed": counted["completed"] >= answered,
            "what did not complete was left by its client": sent - counted["completed"] <= self.seen["left"],
            "none failed": counted["failed"] == 0 and self.seen["failed"] == 0,
            "hits, partials and misses are the requests that began": totals["lookups"]
            == counted["completed"] + counted["cancelled"],
            "tokens not read again are those of the prefix cache": totals["reused"] == metrics["tokens"]["cached"],
            "all prompt tokens were kept or read": totals["reused"] + totals["read"] == metrics["tokens"]["prompt"],
            "no conversation was dropped, no file failed": totals["dropped"] == totals["disk errors"] == 0,
            "memory does not grow": slope(kept, "rss_bytes") * kept[-1].requests < GROWTH * kept[0].rss_bytes,
            "no thread is left over": kept[-1].threads <= kept[0].threads,
            "no descriptor is left over": kept[-1].descriptors <= kept[0].descriptors,
        }
        return {
            "requests": sent,
            "seconds": round(time.monotonic() - self._began, 1),
            "seen": dict(self.seen),
            "counted": counted,
            "prefix_cache": dict(self.totals),
            "rss_slope_bytes_per_1000": round(slope(kept, "rss_bytes") * 1000),
            "rss_bytes": [kept[0].rss_bytes, kept[-1].rss_bytes],
            "threads": sorted({one.threads for one in kept}),
            "descriptors": sorted({one.descriptors for one in kept}),
            "checks": checks,
            "samples": [asdict(one) for one in self.samples],
        }

    def _sample(self, http: httpx.Client, requests: int) -> None:
        metrics = self._settled(http)
        kept, disk = metrics["prefix_cache"], metrics["prefix_cache"]["disk"]
        self.totals.update(
            lookups=kept["hits"] + kept["partials"] + kept["misses"],
            hits=kept["hits"],
            partials=kept["partials"],
            misses=kept["misses"],
            reused=kept["reused_tokens"],
            read=kept["read_tokens"],
            evicted=kept["evicted"],
            dropped=kept["dropped"],
        )
        self.totals.update({"disk written": disk["written"], "disk read": disk["read"], "disk errors": disk["errors"]})
        time.sleep(CLOSING_S)
        with self._process.oneshot():
            sample = Sample(
                requests,
                round(time.monotonic() - self._began, 1),
                self._process.memory_info().rss,
                self._process.num_threads(),
                self._process.num_fds(),
                kept["bytes"],
                kept["slots"],
                disk["entries"],
            )
        self.samples.append(sample)
        print(
            f"{sample.requests} requests in {sample.seconds:.0f} s: {sample.rss_bytes / 1e6:.1f} MB, "
            f"{sample.threads} threads, {sample.descriptors} descriptors, {sample.files} files",
            file=sys.stderr,
        )

    def _settled(self, http: httpx.Client) -> dict[str, Any]:
        """`/metrics` once nothing is under way and all connections but this one are gone."""
        while True:
            metrics = http.get("/metrics").raise_for_status().json()
            queue = metrics["queue"]
            if not queue["waiting"] and not queue["running"] and sum(metrics["requests"].values()) == self.seen["sent"]:
                return dict(metrics)
            time.sleep(0.05)

    def _question(self) -> tuple[list[dict[str, str]], str, float]:
        """Turns to send, which way, and how much patience the client has: from 0 to 1."""
        draw = self._random
        turns = draw.choice(self._conversations) if self._conversations and draw.random() < 0.7 else []
        if not turns or sum(len(turn["content"]) for turn in turns) > LONGEST:
            turns = [{"role": "system", "content": draw.choice(self._systems)}]
        turns = [*turns, {"role": "user", "content": self._text(draw.randrange(4, 120))}]
        # As if answered; what is kept of the real answer differs, which is one more way to part.
        self._conversations.append([*turns, {"role": "assistant", "content": self._text(ANSWER_TOKENS)}])
        del self._conversations[:-12]
        (way,) = draw.choices(list(WAYS), list(WAYS.values()))
        return turns, way, draw.random()

    def _ask(self, question: tuple[list[dict[str, str]], str, float]) -> None:
        turns, way, patience = question
        stays = way in ("whole", "stream")
        body = {"messages": turns, "max_tokens": ANSWER_TOKENS * (1 if stays else 10), "stream": way != "whole"}
        timeout = httpx.Timeout(120, read=0.001 + 0.2 * patience if way == "impatient" else 120)
        outcome, text = "failed", ""
        try:
            with self._clients.stream("POST", CHAT, json=body, timeout=timeout) as response:
                if response.status_code == 200:
                    for frames, piece in enumerate(response.iter_text()):
                        text += piece
                        if way == "enough" and frames >= 8 * patience:
                            outcome = "left"
                            break
                    else:
                        outcome = "answered" if re.search('"finish_reason": ?"', text) else "failed"
        except httpx.ReadTimeout:
            outcome = "left"
        with self._lock:
            self.seen.update(("sent", outcome))

    def _text(self, length: int) -> str:
        return "".join(self._random.choices(LETTERS, k=length))


def slope(samples: Sequence[Sample], name: str) -> float:
    """Of the line with the least squares through a figure, by request."""
    points = [(one.requests, float(getattr(one, name))) for one in samples]
    if len(points) < 2:
        return 0.0
    middle, level = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    return sum((x - middle) * (y - level) for x, y in points) / sum((x - middle) ** 2 for x, _ in points)


def loads(folder: Path) -> list[dict[str, Any]]:
    """What to load in turn, as `/admin/load` takes it."""
    drafted, plain = write_target(folder / "drafted"), write_target(folder / "plain", 7, num_hidden_layers=2)
    own = {"max_draft": 2, "warmup": False}
    return [
        {"model": drafted, "drafter": write_drafter(folder / "head"), "mode": "dspark", **own},
        {"model": plain, "drafter": "none", "mode": "lookup", **own},
    ]


def serving(folder: Path, load: dict[str, Any], heap: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    """A server in a process of its own, with glibc's heap set so, and its address."""
    flags = {
        "--model": load["model"],
        "--drafter": load["drafter"],
        "--mode": load["mode"],
        "--max-draft": str(load["max_draft"]),
        "--port": "0",
        "--prefix-cache-slots": "6",
        "--prefix-cache-bytes": "12000000",
        "--prefix-cache-dir": str(folder / "kept"),
        "--prefix-cache-disk-bytes": "20000000",
    }
    words = [word for flag in flags.items() for word in flag]
    process = subprocess.Popen(
        [sys.executable, "-c", "from dspark.commands.entry import main; main()", "serve", "--no-warmup", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **heap, "MLX_DSPARK_HOME": str(folder)},
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    while httpx.get(f"{url}/health", trust_env=False, timeout=60).json()["status"] != "ok":
        time.sleep(0.05)
    return process, url


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain-heap", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    heap = {} if args.plain_heap else HEAP
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        turns = loads(folder)
        process, url = serving(folder, turns[0], heap)
        try:
            soak = Soak(url, process.pid, turns, seed=args.seed)
            soak.run(args.requests, args.batch)
            found = soak.report(httpx.get(f"{url}/metrics", trust_env=False).json())
        finally:
            process.terminate()
            code = process.wait(60)
    found["checks"]["the server ended in order"] = code == 0
    text = json.dumps(
        {"command": ["tests/benchmarks/soak.py", *sys.argv[1:]], "stamp": stamp(), "heap": heap, **found}, indent=1
    )
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    return 0 if all(found["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
