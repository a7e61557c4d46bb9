"""The transport alone, in a process of its own: start, memory, latency, and a soak. Prints figures; asserts nothing.

python tests/benchmarks/transport.py --requests 10000 --clients 64
"""

import argparse
import http.client
import json
import subprocess
import sys
import textwrap
import threading
import time
from statistics import median, quantiles

import psutil

SERVER = """
    from dspark.server.auth import Guard
    from dspark.server.exchange import Response
    from dspark.server.lifecycle import ended_by_signals
    from dspark.server.origins import Browsers
    from dspark.server.routing import Route, Router
    from dspark.server.transport import bind

    def echo(request):
        return Response.json({"path": request.path, "length": len(request.body)})

    routes = [Route("GET", "/models/{id:path}", echo, "status"), Route("POST", "/messages", echo, "inference")]
    with ended_by_signals() as stop:
        server = bind("127.0.0.1", 0, protected=True)
        server.start(Router(routes, Guard(browsers=Browsers(loopback=True), key="benchmark")))
        print(server.port, flush=True)
        stop.wait()
        server.stop()
"""
HEADERS = {"Authorization": "Bearer benchmark"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    args = parser.parse_args()
    started = time.perf_counter()
    command = [sys.executable, "-c", textwrap.dedent(SERVER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        listening_s = time.perf_counter() - started
        process = psutil.Process(server.pid)
        rss_start = process.memory_info().rss
        one = one_connection(port, args.requests)
        rss_after_one = process.memory_info().rss
        many = many_connections(port, args.clients, args.requests)
        figures = {
            "listening_s": round(listening_s, 3),
            "rss_start_mb": round(rss_start / 1e6, 1),
            "rss_after_one_mb": round(rss_after_one / 1e6, 1),
            "rss_after_many_mb": round(process.memory_info().rss / 1e6, 1),
            "one_connection": one,
            f"{args.clients}_connections": many,
            "threads_at_the_end": process.num_threads(),
        }
        server.terminate()
        figures["exit_code"] = server.wait(30)
    print(json.dumps(figures, indent=2))


def one_connection(port: int, count: int) -> dict[str, float]:
    """Latency of `count` short requests on one connection that is kept alive."""
    times_ms = ask(port, 0, count)
    return {
        "requests": count,
        "median_ms": round(median(times_ms), 3),
        "p99_ms": round(quantiles(times_ms, n=100)[98], 3),
        "requests_per_s": round(count / sum(times_ms) * 1e3),
    }


def many_connections(port: int, clients: int, count: int) -> dict[str, float]:
    """Throughput of `clients` at once; each checks that the answers are its own."""
    started = time.perf_counter()
    threads = [threading.Thread(target=ask, args=(port, number, count // clients)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"requests": count // clients * clients, "requests_per_s": round(count / (time.perf_counter() - started))}


def ask(port: int, client: int, count: int) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    times_ms = []
    for number in range(count):
        path = f"/models/{client}-{number}"
        started = time.perf_counter()
        connection.request("GET", f"/v1{path}", headers=HEADERS)
        body = json.loads(connection.getresponse().read())
        times_ms.append((time.perf_counter() - started) * 1e3)
        if body["path"] != path:
            raise SystemExit(f"a foreign answer: asked for {path}, got {body}")
    connection.close()
    return times_ms


if __name__ == "__main__":
    main()
