"""What macOS's system_profiler reports of chip and cores: as JSON, or as text where the system prints that instead.

The keys of the JSON do not change with the language of the system. Labels of the text do: only English ones are known,
and a report in another language says nothing here.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from dspark.machine.darwin_output import COUNT
from dspark.machine.facts import CoreGroup


@dataclass(frozen=True)
class Report:
    """Facts of SPHardwareDataType and SPDisplaysDataType; None or empty where the report does not tell."""

    chip: str | None = None
    cores: int | None = None
    groups: tuple[CoreGroup, ...] = ()
    gpu_cores: int | None = None


def profiler(text: str) -> Report:
    """Reads either form."""
    try:
        sections = json.loads(text)
    except (ValueError, RecursionError):
        return _text(text)
    hardware, displays = _first(sections, "SPHardwareDataType"), _first(sections, "SPDisplaysDataType")
    processors = hardware.get("number_processors")
    cores, groups = _processors(processors) if isinstance(processors, str) else (_whole(processors), ())
    # The name of a GPU entry may be an internal one, its model is not.
    chip = _apple(hardware.get("chip_type")) or _apple(displays.get("sppci_model"))
    return Report(chip, cores, groups, _whole(displays.get("sppci_cores")))


def _first(sections: Any, name: str) -> dict[str, Any]:
    """First entry of a section; displays hang below the GPU and are not looked at."""
    try:
        return dict(sections[name][0])
    except (TypeError, ValueError, KeyError, IndexError):
        return {}


def _processors(text: str) -> tuple[int | None, tuple[CoreGroup, ...]]:
    """`proc 8:4:4` is total, performance, efficiency. Four parts stand in one order or another, by macOS version."""
    found = re.fullmatch(rf"proc ({COUNT})((?::{COUNT})*)", text)
    if found is None:
        return None, ()
    counts = [int(count) for count in found.group(2).split(":")[1:]]
    names = ("Performance", "Efficiency") if len(counts) == 2 else ()
    return int(found.group(1)), tuple(CoreGroup(*group) for group in zip(names, counts, strict=False))


def _text(text: str) -> Report:
    """Lines before `Chipset Model` are about the CPU, those behind it about the GPU: both count cores alike."""
    hardware, graphics, displays = text.partition("Chipset Model:")
    chip = re.search(r"^\s*Chip:\s*(.+?)\s*$", hardware, re.MULTILINE)
    model = re.match(r"\s*(.+?)\s*$", displays, re.MULTILINE) if graphics else None
    pattern = rf"^\s*Total Number of Cores:\s*({COUNT})(?: \((.+)\))?\s*$"
    cpu = re.search(pattern, hardware, re.MULTILINE)
    gpu = re.search(pattern, displays, re.MULTILINE)
    kinds = re.findall(rf"\b({COUNT}) (\w+)", cpu.group(2) or "") if cpu else []
    return Report(
        chip=_apple(chip.group(1) if chip else model.group(1) if model else None),
        cores=int(cpu.group(1)) if cpu else None,
        groups=tuple(CoreGroup(name.capitalize(), int(count)) for count, name in kinds),
        gpu_cores=int(gpu.group(1)) if gpu else None,
    )


def _apple(name: Any) -> str | None:
    """The name of an Apple chip; Intel's GPUs have models too."""
    return name if isinstance(name, str) and name.startswith("Apple") else None


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None
