"""A generation as a job: decoded on the worker's thread, heard on the thread of the connection."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from queue import Queue
from threading import Event as Flag
from typing import TYPE_CHECKING

from dspark.decoding.events import Event, Finished
from dspark.decoding.request import Request
from dspark.errors import EngineStopped
from dspark.server.telemetry import Telemetry

if TYPE_CHECKING:
    from dspark.engine import Engine


@dataclass(frozen=True)
class Heard:
    """An event of the answer `choice`, and when it happened, by `time.perf_counter`."""

    choice: int
    event: Event
    at: float


class Generation:
    """Requests that are decoded one after another, as one job. `gone` tells that nobody waits for it any more."""

    def __init__(
        self,
        engine: "Engine",
        requests: Sequence[Request],
        telemetry: Telemetry,
        *,
        id_: str = "",
        mode: str = "auto",
        gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._telemetry = telemetry
        self._id = id_
        self._mode = mode
        self._gone = gone
        self._cancelled = False
        self._begun = Flag()
        self._refusal: Exception | None = None
        self._events: Queue[Heard | Exception | None] = Queue()

    def wait_begun(self, timeout_s: float) -> bool:
        """Whether the first request was taken up in time; what keeps it from being so is told by `take`."""
        return self._begun.wait(timeout_s)

    def take(self, timeout_s: float) -> Heard | None:
        """The next event; None once all is over.

        Raises:
            queue.Empty: nothing happened in time. Otherwise what the engine raised.
        """
        heard = self._events.get(timeout=timeout_s)
        if isinstance(heard, Exception):
            raise heard
        return heard

    @property
    def refusal(self) -> Exception | None:
        """What kept the first request from being taken up."""
        return self._refusal

    def cancel(self) -> None:
        self._cancelled = True

    def fail(self, error: Exception) -> None:
        if not self._begun.is_set():
            self._refusal = error
        self._events.put(error)
        self._begun.set()

    def run(self) -> None:
        for choice, request in enumerate(self._requests):
            if self._ended():
                self.withdrawn(choice)
                self.fail(EngineStopped("the request was called off"))
                return
            self._decode(choice, replace(request, cancelled=self._ended))
        self._events.put(None)

    def withdrawn(self, begun: int = 0) -> None:
        """Count what was called off before it began: all answers but the first `begun`."""
        for _ in self._requests[begun:]:
            self._telemetry.count("withdrawn", None)

    def _decode(self, choice: int, request: Request) -> None:
        with (
            self._telemetry.watched(self._id, self._mode, len(request.prompt)) as watch,
            closing(self._engine.generate(request)) as events,
        ):
            for event in events:
                at = time.perf_counter()
                watch.hear(event)
                self._events.put(Heard(choice, event, at))
                self._begun.set()
                if isinstance(event, Finished):
                    watch.finish(event)

    def _ended(self) -> bool:
        return self._cancelled or self._gone()
