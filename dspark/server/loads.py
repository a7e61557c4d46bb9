"""What is loaded, and the one load that may be under way."""

import threading
from typing import Any

from dspark.errors import EngineBusy, LoadCancelled, NotLoaded
from dspark.server.hardware import Hardware
from dspark.server.load import Load
from dspark.server.order import Thinking
from dspark.server.serving import Serving
from dspark.server.telemetry import Telemetry, allocator
from dspark.server.wishes import Wish
from dspark.server.worker import Task, Worker

RETRY_AFTER_SECONDS = 5


class Loads:
    """Loads, swaps and unloads one at a time. Everything may be called from any thread, and nothing waits but `unload`.

    `thinking` is what the server says of it where a client does not; a load can change it for all that come after.
    """

    def __init__(self, worker: Worker, telemetry: Telemetry, hardware: Hardware, thinking: Thinking) -> None:
        self.thinking = thinking
        self._worker = worker
        self._telemetry = telemetry
        self._hardware = hardware
        self._lock = threading.Lock()
        self._serving: Serving | None = None
        self._load: Load | None = None
        self._unloading = False
        self._error: str | None = None

    @property
    def serving(self) -> Serving | None:
        """What is loaded, whether or not it may be used now."""
        return self._serving

    @property
    def load(self) -> Load | None:
        """The load under way."""
        return self._load

    @property
    def error(self) -> str | None:
        """Why the latest load failed; None if it did not."""
        return self._error

    def ready(self) -> Serving:
        """What answers now.

        Raises:
            NotLoaded: nothing does, as a load is under way or none was asked for.
        """
        serving, load = self._serving, self._load
        if load is not None:
            error = NotLoaded(f"{load.name} is being loaded ({load.phase.replace('_', ' ')}): try again when it is")
        elif serving is None or self._unloading:
            error = NotLoaded("no model is loaded: load one with POST /admin/load or mlx-dspark load --url")
        else:
            return serving
        error.retry_after_s = RETRY_AFTER_SECONDS
        raise error

    def begin(self, wish: Wish, thinking: Thinking) -> Load:
        """Begin a load. From here on nothing is answered until it ends; what was accepted before is answered first.

        Raises:
            EngineBusy: another load, or an unload, is under way.
        """
        with self._lock:
            self._make_sure_of_peace()
            load = self._load = Load(wish, thinking.over(self.thinking), self, self._hardware)
            self._error = None
        try:
            self._worker.submit(load, always=True)
        except Exception as error:
            load.fail(error)
            raise
        return load

    def cancel(self) -> Load | None:
        """Call off the load under way, if there is one."""
        load = self._load
        if load is not None:
            load.cancel()
        return load

    def unload(self) -> int:
        """Free the model once what was accepted before is answered; returns the bytes that came back.

        Raises:
            EngineBusy: a load is under way.
        """
        with self._lock:
            self._make_sure_of_peace()
            self._unloading = True
        freed = 0

        def free() -> None:
            nonlocal freed
            serving, self._serving = self._serving, None
            if serving is not None:
                freed = serving.engine.unload()
                self._telemetry.hang_up()
                self._telemetry.allocator = allocator()

        try:
            task = Task(free)
            self._worker.submit(task, always=True)
            task.wait()
        finally:
            self._unloading = False
        return freed

    def current(self) -> Serving | None:
        return self._serving

    def replace(self, serving: Serving | None) -> None:
        before, self._serving = self._serving, serving
        if before is not None:
            before.engine.unload()
            self._telemetry.hang_up()
        self._telemetry.allocator = allocator()

    def ended(self, load: Load, error: Exception | None) -> None:
        with self._lock:
            self._load = None
            if error is None:
                self.thinking = load.thinking
            elif isinstance(error, LoadCancelled):
                self._error = str(error)
            else:
                self._error = " ".join(str(error).split()) or type(error).__name__

    def settle(self) -> None:
        """Write to disk a piece of what was read and is not there yet. For the worker's thread alone."""
        prefix = self._serving.engine.prefix_cache if self._serving is not None else None
        if prefix is not None:
            prefix.settle()

    def let_go(self) -> None:
        """Write all of it, and free the model for good. For the worker's thread alone."""
        if self._serving is not None:
            self._serving.engine.unload()

    def status(self) -> dict[str, Any]:
        """As `GET /admin/status` has it."""
        load, serving = self._load, self._serving
        return {
            "ready": load is None and serving is not None and not self._unloading,
            "loading": load is not None,
            "phase": load.phase if load else None,
            "load_id": load.id if load else None,
            "model": load.name if load else serving.name if serving else None,
            "error": self._error,
        }

    def _make_sure_of_peace(self) -> None:
        if self._load is not None:
            raise EngineBusy(f"{self._load.name} is being loaded already: wait for it, or POST /admin/load/cancel")
        if self._unloading:
            raise EngineBusy("the model is being unloaded: ask again in a moment")
