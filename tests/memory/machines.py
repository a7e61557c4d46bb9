"""A machine whose memory is set by the test."""

from dspark.machine.facts import Limit, Memory, Pressure, Strain
from dspark.machine.platform import Unknown

GB = 10**9


class Set(Unknown):
    """Told what it has; every reading is of the moment."""

    def __init__(
        self,
        total: int | None = None,
        free: int | None = None,
        pressure: Pressure | None = None,
        swap: int | None = None,
        limits: tuple[Limit, ...] = (),
    ) -> None:
        self.total, self.free, self.pressure, self.swap, self.bounds = total, free, pressure, swap, limits

    def memory(self) -> Memory:
        return Memory(total_bytes=self.total, available_bytes=self.free, pressure=self.pressure)

    def strain(self) -> Strain:
        return Strain(self.pressure, self.swap)

    def limits(self) -> tuple[Limit, ...]:
        return self.bounds


class Clock:
    """Stands still until it is moved."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Kept:
    """A prefix cache of `nbytes`, all of it given back by one step; notes what was asked of it."""

    def __init__(self, here: Set | None = None, nbytes: int = 0, given_by: str = "all") -> None:
        self.asked: list[str] = []
        self.nbytes = nbytes
        self._here, self._given_by = here, given_by

    def shed(self, step: str) -> int:
        self.asked.append(step)
        if step != self._given_by or self._here is None or self._here.free is None:
            return 0
        freed, self.nbytes = self.nbytes, 0
        self._here.free += freed
        return freed
