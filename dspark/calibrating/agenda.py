"""The time a calibration takes: what is over, what is under way, what is left."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """Where a calibration is: `share` of the time it will take is over, `left_s` remain by what was measured so far."""

    name: str
    share: float
    left_s: float


class Agenda:
    """Keeps the time of a calibration: what is planned, what is under way, what is left."""

    def __init__(self, report: Callable[[Stage], None], planned: dict[str, float]) -> None:
        self._report = report
        self._planned = planned
        self._done_s = 0.0
        self._name = ""
        self._started = time.perf_counter()

    def plan(self, name: str, seconds: float) -> None:
        """Put a better figure in place of an estimate."""
        self._planned[name] = seconds

    def begin(self, name: str) -> None:
        """Go on to the next stage."""
        self.close()
        self._name, self._started = name, time.perf_counter()
        self.tick()

    def close(self) -> None:
        """The stage under way is over."""
        if self._name:
            self._done_s += time.perf_counter() - self._started
            del self._planned[self._name]
            self._name = ""

    def tick(self) -> None:
        """Report."""
        spent = time.perf_counter() - self._started
        left = max(self._planned[self._name] - spent, 0.0) + sum(
            seconds for name, seconds in self._planned.items() if name != self._name
        )
        done = self._done_s + spent
        self._report(Stage(self._name, done / max(done + left, 1e-9), left))
