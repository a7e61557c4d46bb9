"""Linux."""

import os
import platform
from pathlib import Path

from dspark.machine import linux_output as read
from dspark.machine.facts import PRESSURES, Chip, Limit, Memory, Power, Pressure, Strain, System


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
        for group in self._cgroups():
            total = None if total is None else min(total, group.limit_bytes)
            available = None if available is None else min(available, group.free_bytes)
        swap_total, swap_free = facts.get("SwapTotal"), facts.get("SwapFree")
        moved = read.counters(self._text("proc/vmstat"))
        page = os.sysconf("SC_PAGE_SIZE")
        return Memory(
            total_bytes=total,
            available_bytes=available,
            pressure=self._pressure(),
            swap_total_bytes=swap_total,
            swap_used_bytes=None if swap_total is None or swap_free is None else swap_total - swap_free,
            swapped_in_bytes=moved["pswpin"] * page if "pswpin" in moved else None,
            swapped_out_bytes=moved["pswpout"] * page if "pswpout" in moved else None,
        )

    def strain(self) -> Strain:
        facts = read.kilobytes(self._text("proc/meminfo"))
        total, free = facts.get("SwapTotal"), facts.get("SwapFree")
        return Strain(self._pressure(), None if total is None or free is None else total - free)

    def limits(self) -> tuple[Limit, ...]:
        taken = read.kilobytes(self._text("proc/self/status"))
        sizes = read.process_limits(self._text("proc/self/limits"))
        return (
            *self._cgroups(),
            *(
                Limit(
                    f"this process's {what} (ulimit {flag})",
                    "raise that limit",
                    sizes[name],
                    max(sizes[name] - taken[counter], 0),
                )
                for name, counter, what, flag in (
                    ("Max data size", "VmData", "limit on data", "-d"),
                    ("Max address space", "VmSize", "limit on address space", "-v"),
                )
                if name in sizes and counter in taken
            ),
        )

    def footprint_bytes(self) -> int | None:
        taken = read.kilobytes(self._text("proc/self/status"))
        return taken["RssAnon"] + taken.get("VmSwap", 0) if "RssAnon" in taken else None

    def power(self) -> Power:
        supplies = [
            (self._text(f"{folder}/type").strip(), self._text(f"{folder}/{fact}").strip())
            for folder in self._folders("sys/class/power_supply")
            for fact in ("online", "status")
        ]
        return Power(
            source=read.power_source(supplies), mode=read.power_mode(self._text("sys/firmware/acpi/platform_profile"))
        )

    def _pressure(self) -> Pressure | None:
        """The worse of the machine's and, on cgroup v2, that of this process's own group."""
        own = read.memory_cgroups(self._text("proc/self/cgroup"))[:1]
        texts = ("proc/pressure/memory", *(f"sys/fs/cgroup/{folder}/memory.pressure" for folder in own))
        return max((read.pressure(self._text(text)) for text in texts), key=_severity)

    def _cgroups(self) -> tuple[Limit, ...]:
        """The groups above this process that limit its memory and say how much of it is taken."""
        found = []
        for folder in read.memory_cgroups(self._text("proc/self/cgroup")):
            base = f"sys/fs/cgroup/{folder}"
            limit = read.limit_bytes(self._text(f"{base}/memory.max") or self._text(f"{base}/memory.limit_in_bytes"))
            used = read.limit_bytes(self._text(f"{base}/memory.current") or self._text(f"{base}/memory.usage_in_bytes"))
            if limit is not None and used is not None:
                # File cache is counted as used, and given back on demand.
                cache = read.counters(self._text(f"{base}/memory.stat")).get("inactive_file", 0)
                free = min(max(limit - used + cache, 0), limit)
                found.append(Limit("the container's memory limit", "raise that limit", limit, free))
        return tuple(found)

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


def _severity(level: Pressure | None) -> int:
    return -1 if level is None else PRESSURES.index(level)
