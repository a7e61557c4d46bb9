"""What Linux says of itself under /proc, /sys and /etc, as values. Pure functions of text."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from dspark.machine.facts import PowerMode, PowerSource, Pressure

STALLED_PERCENT = 10.0  # share of ten seconds lost waiting for memory that counts as pressure
NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"


def cpu_model(cpuinfo: str) -> str | None:
    """The name of the processor; most ARM kernels give none."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else None


def cpu_cores(cpuinfo: str) -> int | None:
    """Physical cores; where the kernel does not tell them apart, processors."""
    processors = len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE))
    cores = set()
    for block in cpuinfo.split("\n\n"):
        ids = dict(re.findall(r"^(physical id|core id)\s*:\s*(\d+)$", block, re.MULTILINE))
        if len(ids) == 2:
            cores.add((ids["physical id"], ids["core id"]))
    return len(cores) or processors or None


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The instruction sets of the first processor (x86)."""
    found = re.search(r"^flags\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def kilobytes(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    return {name: int(size) * 1024 for name, size in re.findall(r"^(\S+):\s+(\d+) kB$", text, re.MULTILINE)}


def counters(text: str) -> dict[str, int]:
    """`name number` lines: /proc/vmstat, memory.stat."""
    return {name: int(count) for name, count in re.findall(r"^(\S+) (\d+)$", text, re.MULTILINE)}


def process_limits(text: str) -> dict[str, int]:
    """Soft limits in bytes of /proc/self/limits, by the kernel's names for them; unlimited ones left out."""
    found = re.findall(r"^(Max .+?)\s+(\d+)\s+\S+\s+bytes\s*$", text, re.MULTILINE)
    return {name: int(size) for name, size in found}


def limit_bytes(text: str) -> int | None:
    """A cgroup's memory limit; None where it sets none."""
    word = text.strip()
    return int(word) if word.isdigit() and int(word) < NO_LIMIT_BYTES else None


def memory_cgroups(text: str) -> tuple[PurePosixPath, ...]:
    """Folders below /sys/fs/cgroup that may limit this process's memory, its own first, from /proc/self/cgroup."""
    folders: list[PurePosixPath] = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            root = PurePosixPath("memory" if controllers else "")
            own = PurePosixPath(path.lstrip("/"))
            folders += [root / own, *(root / parent for parent in own.parents)]
    return tuple(dict.fromkeys(folders))


def pressure(text: str) -> Pressure | None:
    """From /proc/pressure/memory: critical when everything waited for memory, warning when something did."""
    stalled = {kind: float(share) for kind, share in re.findall(r"^(some|full) avg10=([\d.]+)", text, re.MULTILINE)}
    if "some" not in stalled:
        return None
    if stalled.get("full", 0.0) >= STALLED_PERCENT:
        return "critical"
    return "warning" if stalled["some"] >= STALLED_PERCENT else "normal"


def power_source(supplies: Iterable[tuple[str, str]]) -> PowerSource | None:
    """From the `type` of each power supply with its `online` or `status`; None where none of them tells."""
    found = set(supplies)
    if found & {("Mains", "1"), ("USB", "1")}:
        return "mains"
    return "battery" if ("Battery", "Discharging") in found else None


def power_mode(profile: str) -> PowerMode | None:
    """The firmware's platform profile."""
    modes: dict[str, PowerMode] = {"low-power": "low", "balanced": "normal", "performance": "high"}
    return modes.get(profile.strip())


def os_version(os_release: str) -> str | None:
    """`Debian GNU/Linux 12 (bookworm)`."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', os_release, re.MULTILINE)
    return found.group(1).strip() if found else None
