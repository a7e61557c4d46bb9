"""What macOS's tools print, as values. Pure functions of text; a line that is missing or new is passed over.

Lines are found by name, never by position: M5 adds memory-tagging lines to vm_stat, macOS 12 has unnamed core levels,
M6 has three, and an unknown key leaves a complaint among sysctl's lines.
"""

import re

from dspark.machine.facts import CoreGroup, PowerMode, PowerSource, Pressure, Thermal

POWER_SOURCES: dict[str, PowerSource] = {"AC Power": "mains", "Battery Power": "battery"}
POWER_MODES: dict[str, PowerMode] = {"0": "normal", "1": "low", "2": "high"}
THERMAL: dict[int, Thermal] = {0: "nominal", 1: "moderate", 2: "heavy", 3: "critical", 4: "critical"}
PRESSURE: dict[int, Pressure] = {1: "normal", 2: "warning", 4: "critical"}
MAX_LEVELS = 8
COUNT, AMOUNT = r"[0-9]{1,18}", r"[0-9]{1,18}(?:\.[0-9]{1,18})?"  # a longer one is no count of anything
UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def sysctl(text: str) -> dict[str, str]:
    """`key: value` lines."""
    values = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and "." in key and " " not in key.strip():
            values[key.strip()] = value.strip()
    return values


def number(value: str | None) -> int | None:
    """A whole number, or None for anything else."""
    try:
        return int(value) if value is not None else None
    except ValueError:
        return None


def flag(value: str | None) -> bool | None:
    """0 or 1."""
    return {"0": False, "1": True}.get(value or "")


def core_groups(values: dict[str, str]) -> tuple[CoreGroup, ...]:
    """The performance levels, fastest first; none on Intel and on macOS 11."""
    named = [f"hw.perflevel{level}." for level in range(MAX_LEVELS)]
    prefixes = [prefix for prefix in named if f"{prefix}physicalcpu" in values or f"{prefix}name" in values]
    levels = number(values.get("hw.nperflevels"))
    return tuple(
        CoreGroup(values.get(f"{prefix}name"), number(values.get(f"{prefix}physicalcpu")))
        for prefix in prefixes[:levels]
    )


def swap_usage(value: str | None) -> tuple[int | None, int | None]:
    """Total and used bytes of `vm.swapusage`."""
    found = {
        name: int(float(size) * UNITS[unit])
        for name, size, unit in re.findall(rf"(total|used) = ({AMOUNT})([KMGT])", value or "")
    }
    return found.get("total"), found.get("used")


def vm_stat(text: str) -> tuple[int, dict[str, int]]:
    """Page size in bytes (0 when the header is missing), and the counters by name."""
    size = re.search(rf"page size of ({COUNT}) bytes", text)
    counters = {
        name.strip('"'): int(count)
        for name, count in re.findall(rf"^(\S[^:\n]*):\s+({COUNT})\.\s*$", text, re.MULTILINE)
    }
    return int(size.group(1)) if size else 0, counters


def available_bytes(page_size: int, counters: dict[str, int]) -> int | None:
    """Free pages, and those whose content can be had again: file cache and purgeable. Activity Monitor counts alike."""
    names = ("Pages free", "File-backed pages", "Pages purgeable")
    if not page_size or any(name not in counters for name in names):
        return None
    return page_size * sum(counters[name] for name in names)


def counted_bytes(name: str, page_size: int, counters: dict[str, int]) -> int | None:
    """A counter of pages in bytes."""
    return counters[name] * page_size if page_size and name in counters else None


def phys_footprint(text: str, pid: int) -> int | None:
    """`phys_footprint` of one process in what `footprint` printed of several, in bytes or by units."""
    _, header, block = text.partition(f"[{pid}]: ")
    found = re.search(rf"^\s*phys_footprint: ({AMOUNT}) ([KMGT]?)B$", block, re.MULTILINE)
    if not header or found is None:
        return None
    return int(float(found.group(1)) * UNITS[found.group(2)])


def power_source(text: str) -> PowerSource | None:
    """From the first line of `pmset -g batt`; desktops print it too."""
    found = re.search(r"Now drawing from '([^']+)'", text)
    return POWER_SOURCES.get(found.group(1)) if found else None


def power_mode(text: str, source: PowerSource | None) -> PowerMode | None:
    """From `pmset -g`, or the block of the present source in `pmset -g custom`.

    Macs that have a High Power Mode call the setting `powermode`, the others `lowpowermode`.
    """
    blocks = dict(re.findall(r"^(\S[^\n]*):\s*\n((?:[ \t]+\S.*(?:\n|$))*)", text, re.MULTILINE))
    names = ["Currently in use", *(name for name, kind in POWER_SOURCES.items() if kind == source)]
    for settings in (blocks[name] for name in names if name in blocks):
        found = re.search(r"^\s+(?:low)?powermode\s+(\d)\s*$", settings, re.MULTILINE)
        if found:
            return POWER_MODES.get(found.group(1))
    return None


def thermal_limit(text: str) -> Thermal | None:
    """`heavy` when `pmset -g therm` tells of a processor held back now.

    None otherwise: a hot Mac may show no limit, and a recorded warning stays until the next start.
    """
    limits = re.findall(rf"CPU_(?:Scheduler|Speed)_Limit\s*=\s*({COUNT})\b", text)
    return "heavy" if any(int(percent) < 100 for percent in limits) else None


def thermal_pressure(text: str) -> Thermal | None:
    """The level that `notifyutil -g` prints behind the name."""
    found = re.search(rf"thermalpressurelevel\s+({COUNT})\s*$", text)
    return THERMAL.get(int(found.group(1))) if found else None


def ioreg_gpu_cores(text: str) -> int | None:
    """`gpu-core-count` of the first Apple GPU."""
    found = re.search(r'"gpu-core-count"\s*=\s*(' + COUNT + r")\b", text)
    return int(found.group(1)) if found else None


def product_version(text: str) -> str | None:
    """`ProductVersion` of sw_vers."""
    found = re.search(r"^ProductVersion:\s*(\S+)", text, re.MULTILINE)
    return found.group(1) if found else None


def virtual_kernel(version: str) -> bool | None:
    """Whether a kernel was built for virtual machines, by the last word of its version; None for an Intel one."""
    found = re.search(r"RELEASE_ARM64_(VMAPPLE|T\d+)", version)
    return found.group(1) == "VMAPPLE" if found else None
