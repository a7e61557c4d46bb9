"""Counters and gauges, as JSON and as Prometheus reads them."""

import time
from dataclasses import asdict
from typing import Any

from dspark.server.hardware import Hardware
from dspark.server.telemetry import Telemetry
from dspark.server.worker import Worker

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "mlx_dspark"
# Name → (its unit as Prometheus writes it, the label that its parts differ in, help).
_COUNTERS = {
    "requests": ("total", "outcome", "Generations that are over."),
    "tokens": ("total", "kind", "Tokens read, written and proposed."),
    "rounds": ("total", "source", "Rounds after the first token, by what proposed."),
    "seconds": ("total", "phase", "Seconds spent in generations."),
}


def snapshot(telemetry: Telemetry, worker: Worker, hardware: Hardware) -> dict[str, Any]:
    """`GET /metrics`. What is not known, or does not exist yet, is null."""
    memory = hardware.memory()
    return {
        "uptime_seconds": time.time() - telemetry.started,
        **telemetry.counters(),
        "queue": {"waiting": worker.waiting, "running": int(worker.busy), "limit": worker.waiting_limit},
        "memory": asdict(telemetry.allocator) if telemetry.allocator else None,
        "system": {
            "total_bytes": memory.total_bytes,
            "available_bytes": memory.available_bytes,
            "pressure": memory.pressure,
            "swap_used_bytes": memory.swap_used_bytes,
            "swapped_in_bytes": memory.swapped_in_bytes,
            "swapped_out_bytes": memory.swapped_out_bytes,
        },
        "roofline": telemetry.roofline,
        "memory_guard": None,
        "prefix_cache": None,
    }


def prometheus(told: dict[str, Any]) -> str:
    """A snapshot in the text format; what is null is left out."""
    lines: list[str] = []
    for name, (suffix, label, text) in _COUNTERS.items():
        _head(lines, f"{name}_{suffix}", "counter", text)
        lines += [f'{_PREFIX}_{name}_{suffix}{{{label}="{part}"}} {value}' for part, value in told[name].items()]
    _one(lines, "target_forwards_total", "counter", "Passes through the target.", told["target_forwards"])
    _one(lines, "uptime_seconds", "gauge", "Seconds since the server began.", told["uptime_seconds"])
    for name, text in (("waiting", "Jobs that wait."), ("running", "Jobs under way.")):
        _one(lines, f"queue_{name}", "gauge", text, told["queue"][name])
    for name, value in (told["memory"] or {}).items():
        _one(lines, f"allocator_{name}", "gauge", "What MLX holds.", value)
    for name, value in told["system"].items():
        if not isinstance(value, str):
            _one(lines, f"system_{name}", "gauge", "The machine's memory.", value)
    for name, value in (told["roofline"] or {}).items():
        _one(lines, f"last_{name}", "gauge", "Of the latest answer.", value)
    return "\n".join((*lines, ""))


def _one(lines: list[str], name: str, kind: str, text: str, value: float | None) -> None:
    if value is not None:
        _head(lines, name, kind, text)
        lines.append(f"{_PREFIX}_{name} {value}")


def _head(lines: list[str], name: str, kind: str, text: str) -> None:
    lines += [f"# HELP {_PREFIX}_{name} {text}", f"# TYPE {_PREFIX}_{name} {kind}"]
