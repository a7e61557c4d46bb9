"""Counters and gauges, as JSON and as Prometheus reads them."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dspark.server.hardware import Hardware
from dspark.server.telemetry import Telemetry
from dspark.server.worker import Worker

if TYPE_CHECKING:
    from dspark.server.serving import Serving

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "mlx_dspark"
# Name → (its unit as Prometheus writes it, the label that its parts differ in, help).
_COUNTERS = {
    "requests": ("total", "outcome", "Generations that are over."),
    "tokens": ("total", "kind", "Tokens read, written and proposed."),
    "rounds": ("total", "source", "Rounds after the first token, by what proposed."),
    "seconds": ("total", "phase", "Seconds spent in generations."),
}
_CACHE_GAUGES = ("slots", "slot_limit", "bytes", "limit_bytes", "tokens", "checkpoints")
_DISK_GAUGES = ("entries", "bytes", "limit_bytes")
_DISK_COUNTERS = ("written", "read", "errors", "ignored", "skipped")
_VISIT = ("prompt_tokens", "shared_tokens", "cached_tokens")


def snapshot(telemetry: Telemetry, worker: Worker, hardware: Hardware, serving: "Serving | None") -> dict[str, Any]:
    """`GET /metrics`. What is not known, or does not exist yet, is null.

    What the prefix cache and the guard count begins anew with each model.
    """
    system = hardware.memory()
    prefix = serving.engine.prefix_cache if serving is not None else None
    held = serving.engine.memory().as_dict() if serving is not None else {}
    guard = held.pop("guard", None)
    return {
        "uptime_seconds": time.time() - telemetry.started,
        **telemetry.counters(),
        "queue": {"waiting": worker.waiting, "running": int(worker.busy), "limit": worker.waiting_limit},
        "memory": held or (asdict(telemetry.allocator) if telemetry.allocator else None),
        "system": {
            "total_bytes": system.total_bytes,
            "available_bytes": system.available_bytes,
            "pressure": system.pressure,
            "swap_used_bytes": system.swap_used_bytes,
            "swapped_in_bytes": system.swapped_in_bytes,
            "swapped_out_bytes": system.swapped_out_bytes,
        },
        "roofline": telemetry.roofline,
        "memory_guard": guard,
        "prefix_cache": asdict(prefix.report()) if prefix is not None else None,
    }


def prometheus(told: dict[str, Any]) -> str:
    """A snapshot in the text format; what is null is left out."""
    lines: list[str] = []
    for name, (suffix, label, text) in _COUNTERS.items():
        _parts(lines, f"{name}_{suffix}", label, text, told[name])
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
    if told["memory_guard"]:
        _guard(lines, told["memory_guard"])
    if told["prefix_cache"]:
        _prefix_cache(lines, told["prefix_cache"])
    return "\n".join((*lines, ""))


def _guard(lines: list[str], told: dict[str, Any]) -> None:
    states = {state: int(told["state"] == state) for state in ("on", "off", "unknown")}
    _parts(lines, "memory_guard", "state", "Whether the guard watches.", states, kind="gauge")
    _one(lines, "memory_guard_room_bytes", "gauge", "What may be taken before a limit binds.", told["room_bytes"])
    _parts(lines, "memory_guard_shed_total", "step", "How often memory was given back.", told["shed"])
    _one(lines, "memory_guard_shed_bytes_total", "counter", "Memory given back.", told["shed_bytes"])
    _one(lines, "memory_guard_refused_total", "counter", "Prompts that did not fit.", told["refused"])
    _one(lines, "memory_guard_shortened_total", "counter", "Prompts read in shorter chunks.", told["shortened"])


def _prefix_cache(lines: list[str], told: dict[str, Any]) -> None:
    lookups = {"hit": told["hits"], "partial": told["partials"], "miss": told["misses"]}
    _parts(lines, "prefix_cache_lookups_total", "outcome", "Prompts against what was kept.", lookups)
    tokens = {"reused": told["reused_tokens"], "read": told["read_tokens"]}
    _parts(lines, "prefix_cache_prompt_tokens_total", "kind", "Prompt tokens by whether they were kept.", tokens)
    for name, text in (("evicted", "Conversations that had to go."), ("dropped", "Conversations lost to an error.")):
        _one(lines, f"prefix_cache_{name}_total", "counter", text, told[name])
    for name in _CACHE_GAUGES:
        _one(lines, f"prefix_cache_{name}", "gauge", "Conversations kept in memory.", told[name])
    for name in _VISIT if told["last"] else ():
        _one(lines, f"prefix_cache_last_{name}", "gauge", "Of the latest prompt.", told["last"][name])
    for name in _DISK_GAUGES if told["disk"] else ():
        _one(lines, f"prefix_cache_disk_{name}", "gauge", "Conversations on disk.", told["disk"][name])
    for name in _DISK_COUNTERS if told["disk"] else ():
        _one(lines, f"prefix_cache_disk_{name}_total", "counter", "Files of conversations.", told["disk"][name])


def _parts(lines: list[str], name: str, label: str, text: str, parts: dict[str, Any], *, kind: str = "counter") -> None:
    _head(lines, name, kind, text)
    lines += [f'{_PREFIX}_{name}{{{label}="{part}"}} {value}' for part, value in parts.items()]


def _one(lines: list[str], name: str, kind: str, text: str, value: float | None) -> None:
    if value is not None:
        _head(lines, name, kind, text)
        lines.append(f"{_PREFIX}_{name} {value}")


def _head(lines: list[str], name: str, kind: str, text: str) -> None:
    lines += [f"# HELP {_PREFIX}_{name} {text}", f"# TYPE {_PREFIX}_{name} {kind}"]
