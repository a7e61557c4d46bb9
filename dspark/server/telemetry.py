"""What the server counts and tells of its work. Written by the worker's thread, read by all."""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from queue import Empty, Full, Queue
from typing import Any, Literal

from dspark.decoding.events import Event, Finished, PrefillProgress, RoundCommitted, Statistics
from dspark.decoding.slow import slow_round_seconds
from dspark.errors import Overloaded

ROUNDS_KEPT = 4096
EVENTS_KEPT = 512  # that one reader may be behind by
READERS_LIMIT = 32  # each holds a connection for as long as it likes: some must be left for all that is short

# Withdrawn is what was called off before it began.
Outcome = Literal["completed", "cancelled", "failed", "withdrawn"]
OUTCOMES: tuple[Outcome, ...] = ("completed", "cancelled", "failed", "withdrawn")


@dataclass(frozen=True)
class Allocator:
    """What MLX held when the worker last looked."""

    active_bytes: int
    cache_bytes: int
    peak_bytes: int


def allocator() -> Allocator:
    """For the worker's thread alone."""
    import mlx.core as mx

    return Allocator(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())


class Subscription:
    """The events of one reader. One that does not read loses the newest, and nobody waits for it."""

    def __init__(self) -> None:
        self._events: Queue[dict[str, Any] | None] = Queue(EVENTS_KEPT)
        self._closed = threading.Event()

    def offer(self, event: dict[str, Any]) -> None:
        """Hand over an event, if there is room."""
        with suppress(Full):
            self._events.put_nowait(event)

    def close(self) -> None:
        """No more will come."""
        self._closed.set()

    def take(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event, or None after the last; raises `queue.Empty` when none came in time."""
        try:
            return self._events.get_nowait() if self._closed.is_set() else self._events.get(timeout=timeout_s)
        except Empty:
            if self._closed.is_set():
                return None
            raise


class Telemetry:
    """Counters since the server began, the latest rounds, and who listens to them.

    `generating` is the id of the request that is decoded now, `progress_at` when something was last heard of one.
    """

    def __init__(self) -> None:
        self.started = time.time()
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._rounds: Counter[str] = Counter()
        self._seconds = {"prefill": 0.0, "decode": 0.0}
        self._target_forwards = 0
        self._offered: list[int] = []
        self._accepted: list[int] = []
        self._histogram: Counter[int] = Counter()
        self._recent: deque[dict[str, Any]] = deque(maxlen=ROUNDS_KEPT)
        self._readers: set[Subscription] = set()
        self.slow_round_s = slow_round_seconds()
        self.generating: str | None = None
        self.allocator: Allocator | None = None
        self.roofline: dict[str, Any] | None = None
        self.last_context_tokens: int | None = None
        self.progress_at: float | None = None

    @contextmanager
    def watched(self, id_: str, mode: str, prompt_tokens: int) -> Iterator["Watched"]:
        """Around one generation, on the worker's thread: whichever way it ends, it is counted and its end is told."""
        watch = Watched(self, id_, mode, prompt_tokens)
        self.generating, self.progress_at = id_, time.time()
        try:
            yield watch
        finally:
            self.generating = None
            watch.close()

    @contextmanager
    def reading(self) -> Iterator[Subscription]:
        """Listen to all events from now on.

        Raises:
            Overloaded: `READERS_LIMIT` do already.
        """
        reader = Subscription()
        with self._lock:
            if len(self._readers) >= READERS_LIMIT:
                raise Overloaded(f"{READERS_LIMIT} readers listen to the events already: close one, or try again later")
            self._readers.add(reader)
        try:
            yield reader
        finally:
            with self._lock:
                self._readers.discard(reader)

    def tell(self, event: dict[str, Any]) -> None:
        """Tell all readers."""
        for reader in tuple(self._readers):
            reader.offer(event)

    def hang_up(self) -> None:
        """The model goes, and with it what there was to hear."""
        with self._lock:
            readers, self._readers = self._readers, set()
        for reader in readers:
            reader.close()

    def round(self, told: dict[str, Any]) -> None:
        """Take note of a round, and tell of it."""
        with self._lock:
            self._recent.append(told)
            if told["drafted"]:
                self._histogram[told["accepted"]] += 1
        self.tell(told)

    def count(self, outcome: Outcome, statistics: Statistics | None) -> None:
        """Count a generation that is over."""
        with self._lock:
            self._requests[outcome] += 1
            if statistics is not None:
                self._add(statistics)

    def _add(self, told: Statistics) -> None:
        self._tokens.update(
            prompt=told.prompt_tokens,
            cached=told.cached_tokens,
            completion=told.completion_tokens,
            drafted=told.drafted,
            accepted=told.accepted,
        )
        self._rounds.update(drafter=told.drafter_rounds, lookup=told.lookup_rounds, plain=told.plain_rounds)
        self._seconds["prefill"] += told.prefill_seconds
        self._seconds["decode"] += told.decode_seconds
        self._target_forwards += told.target_forwards
        self._offered = _sums(self._offered, told.offered_at)
        self._accepted = _sums(self._accepted, told.accepted_at)

    def counters(self) -> dict[str, Any]:
        """Everything counted."""
        with self._lock:
            return {
                "requests": {outcome: self._requests[outcome] for outcome in OUTCOMES},
                "tokens": {
                    name: self._tokens[name] for name in ("prompt", "cached", "completion", "drafted", "accepted")
                },
                "rounds": {name: self._rounds[name] for name in ("drafter", "lookup", "plain")},
                "seconds": dict(self._seconds),
                "target_forwards": self._target_forwards,
            }

    def rounds(self, limit: int) -> dict[str, Any]:
        """The latest rounds, the newest last, and what became of proposals by their place in the draft."""
        with self._lock:
            recent = list(self._recent)[-limit:] if limit else []
            return {
                "rounds": recent,
                "positions": [
                    {"position": at, "offered": offered, "accepted": accepted, "rate": accepted / offered}
                    for at, (offered, accepted) in enumerate(zip(self._offered, self._accepted, strict=True))
                ],
                "accepted_histogram": {str(count): self._histogram[count] for count in sorted(self._histogram)},
            }


class Watched:
    """One generation as telemetry sees it."""

    def __init__(self, telemetry: Telemetry, id_: str, mode: str, prompt_tokens: int) -> None:
        self._telemetry = telemetry
        self._id = id_
        self._mode = mode
        self._processed, self._total = 0, prompt_tokens
        self._prefilling = True
        self._finished: Finished | None = None

    def hear(self, event: Event) -> None:
        """Pass on an event."""
        self._telemetry.progress_at = time.time()
        if isinstance(event, PrefillProgress):
            self._processed, self._total = event.processed, event.total
            if not event.done:
                self._telemetry.tell(self._prefill())
            elif self._prefilling:
                self._end_prefill()
        elif isinstance(event, RoundCommitted):
            self._telemetry.round(
                {
                    "req": self._id,
                    "i": event.index,
                    "drafted": event.drafted,
                    "accepted": event.accepted,
                    "committed": len(event.tokens),
                    "cap": event.cap,
                    "source": event.source,
                    "ms": event.elapsed_ms,
                    "context": event.context,
                }
            )

    def finish(self, finished: Finished) -> None:
        """It came to an end of its own."""
        self._finished = finished

    def close(self) -> None:
        """It is over."""
        if self._prefilling:
            self._end_prefill()
        done = self._finished
        outcome: Outcome = "failed" if done is None else "cancelled" if done.reason == "cancelled" else "completed"
        self._telemetry.count(outcome, done.statistics if done else None)

    def _end_prefill(self) -> None:
        self._prefilling = False
        self._telemetry.tell({**self._prefill(), "done": True})

    def _prefill(self) -> dict[str, Any]:
        return {
            "type": "prefill",
            "req": self._id,
            "mode": self._mode,
            "processed": self._processed,
            "total": self._total,
        }


def _sums(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip_longest(one, other, fillvalue=0)]
