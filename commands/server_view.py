"""How the terminal shows what a running server tells of itself."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dspark.commands.machine_view import size

if TYPE_CHECKING:
    from rich.console import Console

    from dspark.client import Client

ROUNDS = 64  # the latest, over which the speed of now is taken
REFRESH_S = 1.0
NAME_WIDTH = 12
LEAST_WIDTH = NAME_WIDTH + 20  # textwrap never ends where an indent is wider than the line
BAR = 20  # columns of a full bar

Row = tuple[str, str]
Told = Mapping[str, Any]


def show(seen: Told, console: Console) -> None:
    """Print it once."""
    from dspark.commands.rendering import print_verbatim

    for line in lines(seen, console.width):
        print_verbatim(console, line)


def watch(server: Client, console: Console) -> None:
    """Draw it anew every second, until KeyboardInterrupt. Raises as `Client`."""
    from rich.live import Live
    from rich.text import Text

    from dspark.commands.rendering import inert

    seen = server.seen(ROUNDS)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            drawn = "\n".join((*lines(seen, console.width), "", "Ctrl-C ends this view"))
            live.update(Text(inert(drawn)), refresh=True)
            time.sleep(REFRESH_S)
            seen = server.seen(ROUNDS)


def lines(seen: Told, width: int) -> list[str]:
    """What `Client.seen` tells, in lines of `width` columns, or of the fewest that hold names and values side by side.

    Raises:
        NetworkError: it is not what an mlx-dspark server tells.
    """
    from dspark.errors import NetworkError

    hanging, width = " " * NAME_WIDTH, max(width, LEAST_WIDTH)
    try:
        rows = list(_rows(seen["health"], seen["metrics"], seen["rounds"]))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise NetworkError(
            "what answers tells other figures than an mlx-dspark server of this version: correct --url, "
            "or take the mlx-dspark that the server was started with"
        ) from error
    found = []
    for name, value in rows:
        found += textwrap.wrap(
            value, width, initial_indent=f"{name:<{NAME_WIDTH}}", subsequent_indent=hanging, break_on_hyphens=False
        )
    return found


def _rows(health: Told, metrics: Told, rounds: Told) -> Iterator[Row]:
    queue, load = metrics.get("queue") or {}, health.get("download") or {}
    yield "server", _joined(_words(health.get("status"), health.get("phase")), *_counts(queue, "running", "waiting"))
    if load:
        yield "download", f"{size(load.get('bytes_done'))} of {size(load.get('bytes_total'))} of {load.get('repo')}"
    yield "model", _model(health)
    yield "speed", _speed(rounds.get("rounds") or [], metrics.get("roofline") or {})
    yield from _under("acceptance", _acceptance(rounds.get("positions") or []))
    yield "requests", _joined(*_counts(metrics.get("requests") or {}))
    yield "tokens", _joined(*_counts(metrics.get("tokens") or {}))
    yield "memory", _memory(metrics.get("memory"), metrics.get("system") or {})
    yield "guard", _guard(metrics.get("memory_guard"))
    yield from _under("prompts", _prompts(metrics.get("prefix_cache")))
    yield from _under("warning", health.get("warnings") or ())
    if health.get("last_error"):
        yield "last error", str(health["last_error"])


def _model(health: Told) -> str:
    if health.get("model") is None:
        return "none"
    named = (("drafter", "drafter"), ("max_draft", "drafts at most"), ("context_window", "window"))
    told = (f"{word} {health[name]}" for name, word in named if health.get(name) is not None)
    return _joined(health["model"], health.get("mode"), *told)


def _speed(latest: list[Told], answer: Told) -> str:
    """Of the latest rounds, and of the latest answer beside what plain decoding could reach."""
    # The first round of an answer is its prompt's.
    rounds = [one for one in latest if one.get("i")]
    seconds = sum(one["ms"] for one in rounds) / 1e3
    words = []
    if seconds > 0:
        rate = sum(one["committed"] for one in rounds) / seconds
        words.append(f"{rate:.1f} tokens/s over the latest {len(rounds)} rounds")
    rate, ceiling, share = (
        answer.get(name) for name in ("decode_tokens_per_sec", "ceiling_tokens_per_sec", "roofline_ratio")
    )
    if rate is not None:
        words.append(f"latest answer {rate:.1f}")
    if ceiling is not None:
        beside = "" if share is None else f" ({share:.0%} of it)"
        words.append(f"ceiling of plain decoding {ceiling:.1f}{beside}")
    elif words:
        words.append("ceiling unknown")
    return _joined(*words) or "nothing decoded yet"


def _acceptance(positions: list[Told]) -> Iterator[str]:
    for one in positions:
        bar = "#" * round(BAR * one["rate"])
        yield f"{one['position'] + 1:>2} {bar:<{BAR}} {one['rate']:>4.0%} of {one['offered']}"
    if not positions:
        yield "no drafts yet"


def _memory(held: Told | None, system: Told) -> str:
    own = "MLX holds nothing yet"
    if held:
        kept, peak = size(held.get("cache_bytes")), size(held.get("peak_bytes"))
        own = f"MLX holds {size(held.get('active_bytes'))}, {kept} more for later, peak {peak}"
    return _joined(own, f"machine has {size(system.get('available_bytes'))} free of {size(system.get('total_bytes'))}")


def _guard(told: Told | None) -> str:
    if not told:
        return "no model"
    binds = told.get("binds")
    return _joined(
        told.get("state"),
        f"pressure {told.get('pressure') or 'unknown'}",
        f"room {size(told.get('room_bytes'))} under {binds}" if binds else "room unknown",
        *_counts(told, "refused", "shortened"),
        f"gave back {size(told.get('shed_bytes'))}",
    )


def _prompts(told: Told | None) -> Iterator[str]:
    """What the prefix cache holds, what it was good for, and why the latest prompt was as slow as it was."""
    if not told:
        yield "no model"
        return
    if told.get("mode") == "off":
        yield f"all read from their start: {told.get('reason')}"
        return
    limit = size(told.get("limit_bytes"))
    yield f"{told.get('slots')} of {told.get('slot_limit')} kept, {size(told.get('bytes'))} of {limit}"
    yield _joined(*_counts(told, "hits", "partials", "misses", "reused_tokens", "read_tokens"))
    last = told.get("last")
    if last:
        parted = "" if last["shared_tokens"] >= last["prompt_tokens"] - 1 else f", parted at {last['shared_tokens']}"
        yield f"latest: {last['outcome']}, {last['cached_tokens']} of {last['prompt_tokens']} tokens kept{parted}"
    disk = told.get("disk")
    if disk:
        used = f"disk: {disk['entries']} files, {size(disk['bytes'])} of {size(disk['limit_bytes'])}"
        yield _joined(used, *_counts(disk, "written", "read", "errors", "ignored"))


def _under(name: str, values: Iterable[Any]) -> Iterator[Row]:
    """One row a value, named once."""
    for at, value in enumerate(values):
        yield ("" if at else name), str(value)


def _counts(told: Told, *names: str) -> list[str]:
    return [f"{told[name]} {name.replace('_', ' ')}" for name in names or told if told.get(name) is not None]


def _words(*values: Any) -> str:
    return " ".join(str(value).replace("_", " ") for value in values if value is not None)


def _joined(*values: Any) -> str:
    return ", ".join(str(value) for value in values if value)
