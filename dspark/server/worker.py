"""The one thread that owns the engine: jobs run on it one after another, first in, first out."""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from dspark.errors import DSparkError, EngineStopped, Overloaded, TooManyWaiting

WAITING_LIMIT = 64
WAITING_LIMIT_OF_A_KEY = 16
# So long nobody asks for anything before it does what can wait: an agent's next turn often comes at once.
IDLE_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class Job(Protocol):
    """What the worker runs. `fail` and `cancel` are called from any thread, `run` on the worker's alone."""

    def run(self) -> None:
        """Do it. What is raised reaches `fail`."""

    def fail(self, error: Exception) -> None:
        """It ended with `error`, or was never begun."""

    def cancel(self) -> None:
        """End it soon."""


class Task:
    """A job that is one call: whoever asked waits for its result."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._done = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        self._call()
        self._done.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._done.set()

    def cancel(self) -> None:
        """A call cannot be ended; it is short."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it was done in time. Raises what it raised."""
        finished = self._done.wait(timeout_s)
        if self._error is not None:
            raise self._error
        return finished


def _nothing() -> None:
    """Nothing is to be done."""


class Worker:
    """Runs jobs on one thread, each to its end, in the order in which they came. All may be called from any thread.

    `idle` is called on that thread about once a second while there is nothing else to do, `leave` as it ends.
    `last_error` is what the latest job that failed had to say.
    """

    def __init__(
        self,
        waiting_limit: int = WAITING_LIMIT,
        waiting_limit_of_a_key: int = WAITING_LIMIT_OF_A_KEY,
        *,
        idle: Callable[[], object] = _nothing,
        leave: Callable[[], object] = _nothing,
    ) -> None:
        self.waiting_limit = waiting_limit
        self.last_error: str | None = None
        self._limit_of_a_key = waiting_limit_of_a_key
        self._idle = idle
        self._leave = leave
        self._worked = threading.Event()
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Job, str | None]] = deque()
        self._running: Job | None = None
        self._stopping = False
        self._death: str | None = None
        self._thread = threading.Thread(target=self._main, name="dspark-worker", daemon=True)

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether jobs will be done."""
        return self._death is None and self._thread.is_alive()

    @property
    def death(self) -> str | None:
        """What the thread died of, if it did."""
        return self._death

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a job is under way."""
        return self._running is not None

    def submit(self, job: Job, key: str | None = None, *, always: bool = False) -> None:
        """Put a job at the end of the queue, on account of `key`; `always` does not count it.

        Raises:
            Overloaded, TooManyWaiting: the queue is full, or its share for this key.
            EngineStopped: no job will be done any more.
        """
        with self._changed:
            if not self.alive or self._stopping:
                raise EngineStopped(self._last_words())
            if not always:
                self._make_sure_of_room(key)
            self._waiting.append((job, key))
            self._changed.notify_all()

    def withdraw(self, job: Job) -> bool:
        """Take a job out of the queue, or cancel it where it is under way; whether it was still waiting."""
        with self._changed:
            before = len(self._waiting)
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not job)
            waited = len(self._waiting) < before
        job.cancel()
        return waited

    def cancel_all(self) -> None:
        """End what is under way at its next border, and everything that waits."""
        with self._changed:
            waiting, self._waiting = [job for job, _ in self._waiting], deque()
            running = self._running
        for job in (*waiting, running):
            if job is not None:
                job.cancel()
        for job in waiting:
            job.fail(EngineStopped("the server ends; ask again when it is back"))

    def stop(self, timeout_s: float, leaving_s: float = 0.0) -> bool:
        """Cancel everything and end the thread; whether it ended in time, `leaving_s` for what it does as it leaves."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.cancel_all()
        if self._thread.ident is None:
            return True
        if not self._worked.wait(timeout_s):
            return False
        self._thread.join(timeout_s + leaving_s)
        return not self._thread.is_alive()

    def _make_sure_of_room(self, key: str | None) -> None:
        if len(self._waiting) >= self.waiting_limit:
            raise Overloaded(f"{len(self._waiting)} requests wait already: try again in a moment")
        own = sum(other == key for _, other in self._waiting)
        if key is not None and own >= self._limit_of_a_key:
            raise TooManyWaiting(f"{own} requests of this key wait already: try again when they are answered")

    def _main(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._work(job)
        except BaseException as error:
            self._death = f"{type(error).__name__}: {error}".rstrip(": ")
            _logger.critical("the thread dspark-worker died, start the server again", exc_info=error)
        finally:
            self._dismiss()
            self._worked.set()
            self._in_peace(self._leave)
            _let_go_of_mlx()

    def _next(self) -> Job | None:
        while True:
            with self._changed:
                self._running = None
                self._changed.wait_for(lambda: self._waiting or self._stopping, IDLE_SECONDS)
                if self._stopping:
                    return None
                if self._waiting:
                    self._running, _ = self._waiting.popleft()
                    return self._running
            if not self._in_peace(self._idle):
                self._idle = _nothing  # it would fail again

    def _in_peace(self, call: Callable[[], object]) -> bool:
        """Do what nobody waits for; whether it went well."""
        try:
            call()
        except Exception as error:
            _logger.error("what is done between requests failed", exc_info=error)
            return False
        return True

    def _work(self, job: Job) -> None:
        try:
            job.run()
        except Exception as error:
            if not isinstance(error, DSparkError) or error.status >= 500:
                # Of a defect the log tells more; this is for everyone to see.
                told = str(error) if isinstance(error, DSparkError) else type(error).__name__
                self.last_error = " ".join(told.split())
                _logger.error("a job failed: %s", self.last_error)  # who waits for it tells the rest, under its own id
            job.fail(error)
        except BaseException:
            job.fail(EngineStopped(self._last_words()))
            raise

    def _dismiss(self) -> None:
        """Tell those that still wait that nobody comes."""
        with self._changed:
            self._running = None
            left, self._waiting = [job for job, _ in self._waiting], deque()
        for job in left:
            job.fail(EngineStopped(self._last_words()))

    def _last_words(self) -> str:
        if self._stopping:
            return "the server ends; ask again when it is back"
        return "the thread that decodes is gone: start the server again, its log says why"


def _let_go_of_mlx() -> None:
    """End the threads that MLX keeps for the streams of this one: left running, they abort the process at its exit."""
    mx = sys.modules.get("mlx.core")
    if mx is not None:
        mx.synchronize()
        mx.clear_streams()
