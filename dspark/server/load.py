"""One load as a job: download, load, calibrate, warm up, each phase to be seen and to be called off."""

import logging
import threading
import time
import traceback
import uuid
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from dspark.errors import DSparkError, LoadCancelled
from dspark.server.conversation import Conversation
from dspark.server.hardware import Hardware
from dspark.server.order import Thinking
from dspark.server.serving import Serving, listed_name, own_wishes, probe
from dspark.server.wishes import Wish

if TYPE_CHECKING:
    from dspark.engine import Engine
    from dspark.hub.plan import Part

Phase = Literal["downloading", "loading", "calibrating", "warming_up"]
_RATE_SECONDS = 10.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Download:
    """A download under way; `rate` in bytes a second over the last moments. None is not known."""

    repo: str
    bytes_done: int | None = None
    bytes_total: int | None = None
    rate: float | None = None


class Shelf(Protocol):
    """Where a load finds the pair that is loaded, and leaves the one that it loads. Called on the worker's thread."""

    def current(self) -> Serving | None:
        """What is loaded."""

    def replace(self, serving: Serving | None) -> None:
        """Put this in its place, and free what was there."""

    def ended(self, load: "Load", error: Exception | None) -> None:
        """The load is over."""


class Load:
    """A job for the worker. `phase`, `download` and `error` may be read from any thread, `wait` waits for its end.

    The pair before stays in memory until the new one is whole, where there is room for both; where there is not it is
    freed first, and loaded again if the new one cannot be had.
    """

    def __init__(self, wish: Wish, thinking: Thinking, shelf: Shelf, hardware: Hardware) -> None:
        self.id = f"load_{uuid.uuid4().hex[:12]}"
        self.wish = wish
        self.name = listed_name(wish.model)
        self.phase: Phase = "loading"
        self.download: Download | None = None
        self.error: Exception | None = None
        self.thinking = thinking
        self._shelf = shelf
        self._hardware = hardware
        self._cancelled = False
        self._done = threading.Event()
        self._readings: deque[tuple[float, int]] = deque()

    def cancel(self) -> None:
        """Call it off: at once in a download, else as soon as the step that is under way ends."""
        self._cancelled = True

    def fail(self, error: Exception) -> None:
        self.error = error
        _logger.error("%s: %s could not be loaded: %s", self.id, self.name, error, exc_info=_traceback(error))
        self._end()

    def wait(self) -> None:
        """Wait for its end. Raises what it failed with."""
        self._done.wait()
        if self.error is not None:
            raise self.error

    def waited(self, timeout_s: float) -> bool:
        """Whether it came to its end in time, well or not."""
        return self._done.wait(timeout_s)

    def run(self) -> None:
        from dspark import loading

        options, _ = loading.settled(self.wish.load_options())
        parts = loading.parts_of(options)
        self._check()
        for part in parts:
            if part.fetch_bytes:
                self.download, self.phase = Download(part.name), "downloading"
                loading.fetch(part, options, self._heard)
                self._check()
        self.download, self.phase = None, "loading"
        before = self._shelf.current()
        beside = before is None or self._room_beside(before, parts)
        if not beside:
            self._shelf.replace(None)
        try:
            self._shelf.replace(self._load(self.wish, self.thinking))
        except Exception:
            if before is not None and not beside:
                self._bring_back(before)
            raise
        self._end()

    def _load(self, wish: Wish, thinking: Thinking) -> Serving:
        from dspark.engine import Engine

        engine = Engine()
        try:
            engine.load(wish.load_options(), entering=lambda phase: self._check())
            self._check()
            return self._serving(engine, wish, thinking)
        except BaseException as error:
            _forget_locals(error)
            engine.unload()
            raise

    def _serving(self, engine: "Engine", wish: Wish, thinking: Thinking) -> Serving:
        loaded = engine.loaded
        assert loaded is not None
        asked = wish.speculation()
        speculation = engine.resolve(asked)
        self.phase = "calibrating"
        self._hardware.measure()
        self._check()
        known = engine.profile is not None
        costs = engine.costs() if known or (wish.warmup and speculation.cap == "auto") else None
        self._check()
        conversation = Conversation(engine.tokenizer, thinking, loaded.context_window)
        probe(conversation)
        warnings = [*loaded.notes, *conversation.notes]
        warm = False
        if wish.warmup:
            self.phase = "warming_up"
            warm = self._warm_up(engine, wish, warnings)
            self._check()
        return Serving(
            name=listed_name(wish.model),
            wish=wish,
            engine=engine,
            loaded=loaded,
            tokenizer=engine.tokenizer,
            conversation=conversation,
            asked=asked,
            speculation=speculation,
            window=loaded.context_window,
            wishes=own_wishes(Path(loaded.target)),
            traffic=engine.traffic(),
            costs=costs,
            profile=engine.profile,
            warnings=tuple(warnings),
            warm=warm,
            thinking=thinking,
        )

    def _warm_up(self, engine: "Engine", wish: Wish, warnings: list[str]) -> bool:
        """Whether it went well. It passes by all that counts generations, and leaves nothing behind."""
        import mlx.core as mx

        from dspark.loading import warm_up

        try:
            warm_up(engine, wish.speculation(), lambda: self._cancelled)
        except Exception as error:  # the first real request will meet it again, if it is not of the warm-up alone
            why = " ".join(str(error).split()) or type(error).__name__
            _logger.warning("the warm-up failed (%s)", why, exc_info=_traceback(error))
            warnings.append(f"the warm-up failed ({why})")
            return False
        finally:
            mx.clear_cache()
            mx.reset_peak_memory()
        return True

    def _room_beside(self, before: Serving, parts: "tuple[Part, ...]") -> bool:
        """Whether both pairs fit into memory, as far as that can be known."""
        from dspark.machine.room import Room, room

        here = room(self._hardware.machine())
        if here.limit_bytes is None or any(part.weight_bytes is None for part in parts):
            return False
        left = Room(max(here.limit_bytes - before.loaded.resident_bytes, 0), here.free_bytes, here.binds)
        return left.verdict(sum(part.weight_bytes or 0 for part in parts)) == "fits"

    def _bring_back(self, before: Serving) -> None:
        """Load the pair again that had to go."""
        cancelled, self._cancelled = self._cancelled, False
        try:
            self._shelf.replace(self._load(before.wish, before.thinking))
        except Exception as error:
            _logger.error("%s could not be loaded again", before.name, exc_info=error)
        self._cancelled = cancelled

    def _heard(self, done_bytes: int | None, total_bytes: int) -> None:
        """Called by the threads of a download; what is raised here ends it."""
        self._check()
        assert self.download is not None
        rate = None if done_bytes is None else self._rate(done_bytes)
        self.download = Download(self.download.repo, done_bytes, total_bytes, rate)

    def _rate(self, done_bytes: int) -> float | None:
        """Bytes a second over the last moments."""
        now, readings = time.monotonic(), self._readings
        readings.append((now, done_bytes))
        while readings[0][0] < now - _RATE_SECONDS:
            readings.popleft()
        since, before = readings[0]
        return (done_bytes - before) / (now - since) if now > since else None

    def _check(self) -> None:
        if self._cancelled:
            raise LoadCancelled(f"the load of {self.name} was cancelled; what was downloaded is kept")

    def _end(self) -> None:
        self._shelf.ended(self, self.error)
        self._done.set()


def _forget_locals(error: BaseException) -> None:
    """Free what the calls that failed were at: with them an error keeps the weights for as long as it is known."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            left += [one.__cause__, one.__context__]


def _traceback(error: Exception) -> Exception | None:
    """Of a defect; what is raised on purpose explains itself."""
    return None if isinstance(error, DSparkError) else error
