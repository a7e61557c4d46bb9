"""How busy other programs keep this machine's cores: what spoils a measurement unseen."""

import os
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since some start: by the clock, worked by all cores, and worked by this process and its children."""

    clock_s: float
    all_cores_s: float
    own_s: float


def cpu_times() -> CpuTimes | None:
    """A reading to be compared with a later one; None where the system does not tell."""
    import psutil

    try:
        system = psutil.cpu_times()._asdict()
        own = psutil.Process().cpu_times()
    except (psutil.Error, OSError):
        return None
    # Guest time is part of user time; time taken by a hypervisor's other guests (steal) is lost to us, so it counts.
    idle = {"idle", "iowait", "guest", "guest_nice"}
    worked = sum(seconds for kind, seconds in system.items() if kind not in idle)
    return CpuTimes(time.perf_counter(), worked, own.user + own.system + own.children_user + own.children_system)


def busy_cores(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """Cores that other programs kept busy between two readings, on average; 0.0 is an idle machine."""
    if before is None or after is None or after.clock_s <= before.clock_s:
        return None
    others = (after.all_cores_s - before.all_cores_s) - (after.own_s - before.own_s)
    return round(max(others, 0.0) / (after.clock_s - before.clock_s), 2)


def busy_cores_now(seconds: float = 0.2) -> float | None:
    """The same over the next moment."""
    before = cpu_times()
    time.sleep(seconds)
    return busy_cores(before, cpu_times())


def load_average() -> float | None:
    """Runnable processes over the last minute, this one included."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
