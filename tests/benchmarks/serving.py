"""What serving costs: the same prompts decoded in this process, and asked of a server over HTTP on loopback.

Each prompt goes both ways in turn, several times, on the very same engine and thread; the client has a process of its
own, as clients do. Prints JSON: the median time to the first token and of the whole answer in the engine, and the
median of what the server adds, pair by pair.

    python tests/benchmarks/serving.py [--tokens 64] [--repeats 5] [--json FILE]
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from functools import cache
from pathlib import Path

import httpx

from dspark.decoding.events import RoundCommitted
from dspark.decoding.request import Request
from dspark.machine import stamp
from dspark.racing.prompts import builtin
from dspark.server.worker import Task

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
from live import events, served


def decoded(app, text, tokens):
    """Seconds to the first token and to the end, on the worker's thread."""
    serving, found = app.loads.serving, []

    def run():
        begun = time.perf_counter()
        request = Request(serving.engine.encode_chat(text), tokens, speculation=serving.asked)
        for event in serving.engine.generate(request):
            if isinstance(event, RoundCommitted) and not found:
                found.append(time.perf_counter() - begun)
        found.append(time.perf_counter() - begun)

    task = Task(run)
    app.worker.submit(task)
    task.wait()
    return found


@cache
def client(url):
    """One connection, kept, as the SDKs do."""
    return httpx.Client(base_url=url, trust_env=False, timeout=600)


def asked(url, text, tokens):
    """The same as a client sees it, streamed."""
    http = client(url)
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0, "stream": True}
    begun, first = time.perf_counter(), None
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        for _, data in events(response):
            if first is None and data != "[DONE]" and data["choices"][0]["delta"].get("content"):
                first = time.perf_counter() - begun
    return [first, time.perf_counter() - begun]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--json", type=Path)
    wanted = options.parse_args()
    prompts = [prompt.text for prompt in builtin()][:6]
    engine, server = [], []
    flags = {"model": "demo", "precision": "fp32", "mode": "dspark", "profile": "none", "max_draft": 2}
    flags["prefix_cache"] = False  # else whoever comes second has nothing to read
    with served(**flags) as live, multiprocessing.get_context("spawn").Pool(1) as apart:
        apart.apply(asked, (live.url, prompts[0], 1))
        for turn in range(wanted.repeats):
            for text in prompts:
                ways = [
                    lambda text=text: engine.append(decoded(live.app, text, wanted.tokens)),
                    lambda text=text: server.append(apart.apply(asked, (live.url, text, wanted.tokens))),
                ]
                for way in ways if turn % 2 == 0 else reversed(ways):
                    way()
    rows = {}
    for at, name in enumerate(("first_token_ms", "whole_ms")):
        # Paired by prompt and turn, so that what disturbs the machine disturbs both.
        gaps = [(over[at] - inside[at]) * 1e3 for inside, over in zip(engine, server, strict=True)]
        inside = statistics.median(one[at] for one in engine) * 1e3
        added = statistics.median(gaps)
        rows[name] = {"engine": inside, "added": added, "added_share": added / inside}
    command = ["tests/benchmarks/serving.py", *sys.argv[1:]]
    report = {"command": command, "stamp": stamp(), "tokens": wanted.tokens, "answers": len(server), **rows}
    print(json.dumps(report, indent=2))
    if wanted.json:
        wanted.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
