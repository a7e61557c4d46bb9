"""What else the machine did while a race ran: other programs' load, and memory moved to and from swap."""

import time
from dataclasses import dataclass
from types import TracebackType

import psutil


@dataclass(frozen=True)
class Conditions:
    """Seen over the time of a race.

    `others_cpu` is the share of all processor cores that other programs used, 0 to 1; `swapped_bytes` what the system
    moved to and from swap. None where the system does not tell.
    """

    others_cpu: float | None
    swapped_bytes: int | None


class Watch:
    """Context manager around a race; `conditions` is there after it."""

    conditions = Conditions(None, None)

    def __enter__(self) -> "Watch":
        self._begun = time.monotonic()
        self._busy, self._own, self._swapped = _busy_s(), _own_s(), _swapped_bytes()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        cores_s = (time.monotonic() - self._begun) * (psutil.cpu_count() or 1)
        busy, swapped = _busy_s(), _swapped_bytes()
        self.conditions = Conditions(
            others_cpu=_others(busy, self._busy, _own_s() - self._own, cores_s),
            swapped_bytes=None if swapped is None or self._swapped is None else max(swapped - self._swapped, 0),
        )


def _others(busy: float | None, before: float | None, own: float, cores_s: float) -> float | None:
    if busy is None or before is None or cores_s <= 0:
        return None
    return min(max((busy - before - own) / cores_s, 0.0), 1.0)


def _busy_s() -> float | None:
    try:
        times = psutil.cpu_times()
    except (OSError, psutil.Error):
        return None
    # user already holds guest time, and steal is another machine's: neither is counted twice nor as ours.
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def _own_s() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def _swapped_bytes() -> int | None:
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError, psutil.Error):
        return None
    return int(swap.sin + swap.sout)
