"""Tells the log of a round that does not end: a stall under load is otherwise seen by nobody but the client."""

import logging
import threading
import time
from collections.abc import Callable

from dspark.server.telemetry import Telemetry

_LOOK_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class Watchdog:
    """A thread that looks about once a second, and speaks once a stall."""

    def __init__(self, telemetry: Telemetry, clock: Callable[[], float] = time.time) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._told: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._main, name="dspark-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def look(self) -> None:
        """Say so if a generation under way has made no progress for longer than a round may take."""
        since = self._telemetry.progress_at
        if not self._telemetry.generating or since is None or since == self._told:
            return
        silent_s = self._clock() - since
        if silent_s > self._telemetry.slow_round_s:
            self._told = since
            _logger.error(
                "%s: no progress for %.0f s; if it does not go on, restart the server",
                self._telemetry.generating,
                silent_s,
            )

    def _main(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            self.look()
