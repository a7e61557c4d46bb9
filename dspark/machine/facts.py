"""What can be known of a machine. Every field that could not be read is None: unknown stays unknown."""

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

Pressure = Literal["normal", "warning", "critical"]
PRESSURES: tuple[Pressure, ...] = ("normal", "warning", "critical")
PowerSource = Literal["mains", "battery"]
PowerMode = Literal["normal", "low", "high"]
Thermal = Literal["nominal", "moderate", "heavy", "critical"]


@dataclass(frozen=True)
class CoreGroup:
    """Cores of one kind, under the system's own name for it ("Performance", "Super"); macOS 12 has no names."""

    name: str | None
    count: int | None


@dataclass(frozen=True)
class Chip:
    """`cores` counts physical CPU cores, `usable_cores` those this process may run on."""

    name: str | None = None
    cores: int | None = None
    groups: tuple[CoreGroup, ...] = ()
    usable_cores: int | None = None
    gpu_cores: int | None = None
    features: frozenset[str] = frozenset()  # CPU flags, Linux on x86 only

    @property
    def generation(self) -> str | None:
        """`M3` of "Apple M3 Max"; None for anything but Apple's chips."""
        found = re.match(r"Apple ([AM]\d+)\b", self.name or "")
        return found.group(1) if found else None

    @property
    def performance_cores(self) -> int | None:
        """CPU cores of every kind but Efficiency; of two kinds without names (macOS 12) those of the first."""
        fast = [group for group in self.groups if group.name != "Efficiency"]
        if len(fast) > 1 and all(group.name is None for group in fast):
            fast.pop()
        counts = [group.count for group in fast]
        return None if not counts or None in counts else sum(count for count in counts if count is not None)


@dataclass(frozen=True)
class System:
    """`architecture` is this process's, so an Apple chip under Rosetta shows x86_64 with `translated` set."""

    name: str
    version: str | None = None
    architecture: str | None = None
    translated: bool | None = None
    virtual: bool | None = None

    @property
    def label(self) -> str:
        """`macOS 26.5`; a Linux version is the distribution's own name for itself."""
        if self.name == "Linux" and self.version:
            return self.version
        return " ".join(word for word in (self.name, self.version) if word)


@dataclass(frozen=True)
class Memory:
    """`available_bytes` can be had without swapping. `swapped_*_bytes` count since boot: compare two readings.

    `gpu_wired_limit_bytes` is the owner's limit on GPU memory, 0 where the system's default applies (macOS only).
    """

    total_bytes: int | None = None
    available_bytes: int | None = None
    pressure: Pressure | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    swapped_in_bytes: int | None = None
    swapped_out_bytes: int | None = None
    gpu_wired_limit_bytes: int | None = None


@dataclass(frozen=True)
class Strain:
    """How memory stands at this moment: the part of `Memory` that is read again and again."""

    pressure: Pressure | None = None
    swap_used_bytes: int | None = None


@dataclass(frozen=True)
class Limit:
    """A bound on this process that nothing beyond it can loosen: passing it ends the process, or fails it.

    `binds` names it, `remedy` says how its owner would raise it; `free_bytes` can still be taken.
    """

    binds: str
    remedy: str
    limit_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Power:
    """What feeds the machine, the energy mode it is in, and how far heat holds it back at this moment."""

    source: PowerSource | None = None
    mode: PowerMode | None = None
    thermal: Thermal | None = None


@dataclass(frozen=True)
class Runtime:
    """The Python stack. A version is None where the package is missing; `mlx_error` says why MLX does not import."""

    python: str
    mlx_dspark: str | None = None
    mlx: str | None = None
    mlx_lm: str | None = None
    device: Literal["gpu", "cpu"] | None = None
    device_name: str | None = None
    gpu_architecture: str | None = None
    working_set_bytes: int | None = None
    mlx_error: str | None = None


@dataclass(frozen=True)
class Machine:
    chip: Chip
    system: System
    memory: Memory
    runtime: Runtime

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        facts = asdict(self)
        facts["chip"] |= {"generation": self.chip.generation, "performance_cores": self.chip.performance_cores}
        del facts["chip"]["features"]
        return facts
