"""The registry's pairs on this machine: which fit its memory, and which are on its disks."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dspark.doctor.check import Check, Subject
from dspark.errors import DSparkError
from dspark.hub import checkpoint, demo, registry, shelves
from dspark.hub.inventory import Inventory
from dspark.hub.registry import Pair
from dspark.machine.facts import Machine
from dspark.machine.room import Room, Verdict, room

PAIRS = Subject("pairs", "Pairs")


@dataclass(frozen=True)
class PairState:
    """A pair of the registry as it stands here.

    `fit` judges the published peak, which is that of the build named in `target`; "not now" fits when other programs
    are closed. `targets` and `drafters` are the folders on disk that would be loaded, in any quantization of the
    target; `too_large` are those of the targets whose weights alone are more than this machine can hold.
    """

    id: str
    target: str
    drafter: str | None
    peak_ram_gb: float
    fit: Verdict
    targets: tuple[str, ...]
    drafters: tuple[str, ...]
    too_large: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing of it has to be fetched."""
        return bool(self.targets and self.drafters)


def survey(found: Iterable[Inventory | None], machine: Machine) -> tuple[PairState, ...]:
    """Every pair, the largest first."""
    inventories = [inventory for inventory in found if inventory]
    targets: dict[str, list[Path]] = {}
    for folder in [folder for inventory in inventories for folder in inventory.models]:
        pair = _pair_of(folder)
        if pair:
            targets.setdefault(pair.id, []).append(folder)
    memory = room(machine)
    pairs = sorted(registry.PAIRS, key=lambda pair: -pair.peak_ram_gb)
    return tuple(_state(pair, targets.get(pair.id, []), memory) for pair in pairs)


def summary(pairs: Iterable[PairState]) -> Check:
    """How many fit, and which of them could be loaded without a network."""
    pairs = list(pairs)
    here = [pair for pair in pairs if pair.targets]
    large = [folder for pair in here for folder in pair.too_large]
    if any(pair.fit == "unknown" for pair in pairs):
        seen = f"{len(pairs)} known; whether they fit is unknown"
    else:
        seen = f"{sum(pair.fit != 'too large' for pair in pairs)} of {len(pairs)} fit"
    named = [pair.id if pair.complete else f"{pair.id} (without its drafter)" for pair in here]
    seen += f"; on disk: {', '.join(named) or 'none yet'}"
    if large:
        todo = f"take a smaller model or quantization in place of {', '.join(large)}, which is too large here"
        return PAIRS.warn(seen, todo)
    return PAIRS.ok(seen)


def _pair_of(folder: Path) -> Pair | None:
    try:
        return registry.find(folder, checkpoint.read_config(folder))
    except DSparkError:
        return None


def _state(pair: Pair, targets: list[Path], memory: Room) -> PairState:
    large = [folder for folder in targets if memory.verdict(_weight_bytes(folder)) == "too large"]
    return PairState(
        id=pair.id,
        target=pair.target,
        drafter=pair.drafter,
        peak_ram_gb=pair.peak_ram_gb,
        fit=memory.verdict(round(pair.peak_ram_gb * 1e9)),
        targets=tuple(map(shelves.short, targets)),
        drafters=tuple(map(shelves.short, _on_disk(pair))),
        too_large=tuple(map(shelves.short, large)),
    )


def _weight_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in checkpoint.weight_files(folder))


def _on_disk(pair: Pair) -> list[Path]:
    """The drafter's folder, where a load would find it."""
    if pair is registry.DEMO:
        return [demo.head()]
    try:
        folder = shelves.search(pair.drafter).folder if pair.drafter else None
    except DSparkError:
        return []
    return [folder] if folder else []
