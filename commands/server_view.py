"""How the terminal shows what a running server tells of itself."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from dspark.client import Client

ROUNDS = 64  # the latest, over which the speed of now is taken
REFRESH_S = 1.0
NAME_WIDTH = 12
BAR = 20  # columns of a full bar

Row = tuple[str, str]


def snapshot(server: Client) -> dict[str, Any]:
    """`/health`, `/metrics` and the latest rounds of `/rounds`, by these names. Raises as `Client`."""
    return {
        "health": server.health(),
        "metrics": server.status("/metrics"),
        "rounds": server.status(f"/rounds?limit={ROUNDS}"),
    }


def show(seen: Mapping[str, Any], console: Console) -> None:
    """Print it once."""
    from dspark.commands.rendering import print_verbatim

    for line in lines(seen, console.width):
        print_verbatim(console, line)


def watch(server: Client, console: Console) -> None:
    """Draw it again and again, until KeyboardInterrupt."""
    from rich.live import Live
    from rich.text import Text

    from dspark.commands.rendering import inert

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            drawn = "\n".join((*lines(snapshot(server), console.width), "", "Ctrl-C ends this view"))
            live.update(Text(inert(drawn)), refresh=True)
            time.sleep(REFRESH_S)


def lines(seen: Mapping[str, Any], width: int) -> list[str]:
    """All of it in lines of at most `width` columns."""
    found = []
    for name, value in _rows(seen["health"], seen["metrics"], seen["rounds"]):
        wrapped = textwrap.wrap(
            " ".join(f"{name:<{NAME_WIDTH - 1}} {value}".split(" ")) if name else value,
            width,
            initial_indent="" if name else " " * NAME_WIDTH,
            subsequent_indent=" " * NAME_WIDTH,
        )
        found += wrapped
    return found


def _rows(health: Mapping[str, Any], metrics: Mapping[str, Any], rounds: Mapping[str, Any]) -> Iterator[Row]:
    yield "server", _state(health, metrics)
    yield "model", _model(health)
    yield "speed", _speed(rounds.get("rounds") or [], metrics.get("roofline") or {})
    yield "requests", _counted(metrics.get("requests") or {})
    yield "tokens", _counted(metrics.get("tokens") or {})
    for name, value in _named("acceptance", _acceptance(rounds.get("positions") or [])):
        yield name, value
    yield "memory", _memory(metrics.get("memory") or {}, metrics.get("system") or {})
    yield "guard", _guard(metrics.get("memory_guard"))
    yield from _named("prompts", _prefix(metrics.get("prefix_cache")))
    yield from _named("warnings", health.get("warnings") or ())
    if health.get("last_error"):
        yield "last error", str(health["last_error"])
