"""What else the machine did while a race ran: other programs' load, and memory fetched back from swap."""

import os
from dataclasses import dataclass
from types import TracebackType

from dspark.machine import platform
from dspark.machine.load import busy_cores, cpu_times


@dataclass(frozen=True)
class Conditions:
    """Seen over the time of a race.

    `others_cpu` is the share of all processor cores that other programs used, 0 to 1; `swapped_in_bytes` what came back
    from swap. None where the system does not tell.
    """

    others_cpu: float | None
    swapped_in_bytes: int | None


class Watch:
    """Context manager around a race; `conditions` is there after it."""

    conditions = Conditions(None, None)

    def __enter__(self) -> "Watch":
        self._cpu, self._swapped = cpu_times(), _swapped_in_bytes()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.conditions = Conditions(
            others_cpu=_share(busy_cores(self._cpu, cpu_times())),
            swapped_in_bytes=_since(self._swapped, _swapped_in_bytes()),
        )


def _share(cores: float | None) -> float | None:
    return None if cores is None else min(cores / (os.cpu_count() or 1), 1.0)


def _since(before: int | None, after: int | None) -> int | None:
    # The counters can go backwards, when a swap device is removed.
    return None if before is None or after is None else max(after - before, 0)


def _swapped_in_bytes() -> int | None:
    return platform.current().memory().swapped_in_bytes
