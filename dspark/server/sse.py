"""Server-sent events: how a frame is written, and what fills the silence between frames."""

import json
import os
import time
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any, TypeVar

from dspark.errors import UsageError

_POLL_SECONDS = 0.25
_VARIABLE = "MLX_DSPARK_STREAM_KEEPALIVE_S"

T = TypeVar("T")


def frame(data: Any, event: str | None = None) -> bytes:
    """One event: `data` as JSON, or as it is where it is text (`[DONE]`, which has no line breaks)."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n".encode("utf-8", "backslashreplace")


def keepalive_seconds() -> float:
    """How long a stream may be silent; raises `UsageError` if the variable is no such time."""
    text = os.environ.get(_VARIABLE) or "15"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{_VARIABLE} is {text!r}: give a number of seconds above 0")
    return seconds


def patiently(
    take: Callable[[float], T],
    gone: Callable[[], bool],
    keepalive_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[T | None]:
    """What `take(timeout_s)` gives, and None after each `keepalive_s` of silence; ends once `gone()`.

    `take` raises `queue.Empty` when nothing came in time, as `Queue.get` does.
    """
    spoken = clock()
    while not gone():
        try:
            item = take(min(_POLL_SECONDS, keepalive_s))
        except Empty:
            if clock() - spoken < keepalive_s:
                continue
            yield None
        else:
            yield item
        spoken = clock()
