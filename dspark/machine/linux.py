"""Linux."""

import os
import platform
from pathlib import Path

from dspark.machine import linux_output as read
from dspark.machine.facts import Chip, Memory, Power, System


class Linux:
    """Answers from the files under `root`; what a container's cgroup allows counts, not what its host has."""

    def __init__(self, root: Path = Path("/"), architecture: str = platform.machine()) -> None:
        self._root = root
        self._architecture = architecture

    def chip(self) -> Chip:
        cpuinfo = self._text("proc/cpuinfo")
        return Chip(
            name=read.cpu_model(cpuinfo),
            cores=read.cpu_cores(cpuinfo),
            usable_cores=len(os.sched_getaffinity(0)),  # type: ignore[attr-defined, unused-ignore]  # Linux only
            features=read.cpu_flags(cpuinfo),
        )

    def system(self) -> System:
        flags = read.cpu_flags(self._text("proc/cpuinfo"))
        return System(
            name="Linux",
            version=read.os_version(self._text("etc/os-release")),
            architecture=self._architecture or None,
            translated=False,
            virtual="hypervisor" in flags if flags else None,
        )

    def memory(self) -> Memory:
        facts = read.kilobytes(self._text("proc/meminfo"))
        total, available = facts.get("MemTotal"), facts.get("MemAvailable")
        limit, left = self._cgroup()
        if limit is not None and total is not None and limit < total:
            total = limit
        if left is not None and available is not None:
            available = min(available, left)
        swap_total, swap_free = facts.get("SwapTotal"), facts.get("SwapFree")
        moved = read.counters(self._text("proc/vmstat"))
        page = os.sysconf("SC_PAGE_SIZE")
        return Memory(
            total_bytes=total,
            available_bytes=available,
            pressure=read.pressure(self._text("proc/pressure/memory")),
            swap_total_bytes=swap_total,
            swap_used_bytes=None if swap_total is None or swap_free is None else swap_total - swap_free,
            swapped_in_bytes=moved["pswpin"] * page if "pswpin" in moved else None,
            swapped_out_bytes=moved["pswpout"] * page if "pswpout" in moved else None,
        )

    def power(self) -> Power:
        supplies = [
            (self._text(f"{folder}/type").strip(), self._text(f"{folder}/{fact}").strip())
            for folder in self._folders("sys/class/power_supply")
            for fact in ("online", "status")
        ]
        return Power(
            source=read.power_source(supplies), mode=read.power_mode(self._text("sys/firmware/acpi/platform_profile"))
        )

    def _cgroup(self) -> tuple[int | None, int | None]:
        """Smallest memory limit above this process, and what is left of the tightest one; None without a limit."""
        limits, rests = [], []
        for folder in read.memory_cgroups(self._text("proc/self/cgroup")):
            base = f"sys/fs/cgroup/{folder}"
            limit = read.limit_bytes(self._text(f"{base}/memory.max") or self._text(f"{base}/memory.limit_in_bytes"))
            if limit is None:
                continue
            limits.append(limit)
            used = read.limit_bytes(self._text(f"{base}/memory.current") or self._text(f"{base}/memory.usage_in_bytes"))
            if used is not None:
                # File cache is counted as used, and given back on demand.
                cache = read.counters(self._text(f"{base}/memory.stat")).get("inactive_file", 0)
                rests.append(max(limit - used + cache, 0))
        return min(limits, default=None), min(rests, default=None)

    def _folders(self, path: str) -> list[str]:
        try:
            return [f"{path}/{entry.name}" for entry in (self._root / path).iterdir()]
        except OSError:
            return []

    def _text(self, path: str) -> str:
        try:
            return (self._root / path).read_text(errors="replace")
        except OSError:
            return ""
