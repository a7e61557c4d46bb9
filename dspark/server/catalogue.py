"""`GET /admin/models`: pairs that are known, what is on disk, and how this machine compares with published figures."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dspark.doctor import pairs
from dspark.errors import DSparkError
from dspark.hub import checkpoint, inventory, registry, shelves
from dspark.hub.inventory import Inventory
from dspark.hub.shelves import Shelf
from dspark.machine.chips import published
from dspark.server.hardware import Hardware
from dspark.server.serving import listed_name

REFERENCE_CHIP, REFERENCE_GPU_CORES = "Apple M4 Pro", 20  # of the published speed-ups


def catalogue(hardware: Hardware) -> dict[str, Any]:
    """Answers without a model and without the network."""
    found = _shelves()
    known = {pair.id: pair for pair in registry.PAIRS}
    states = pairs.survey([held for _, held in found], hardware.machine())
    return {
        "pairs": [
            {
                **asdict(state),
                "mode": known[state.id].mode,
                "published_speedup": known[state.id].published_speedup,
                "measured_by": known[state.id].measured_by,
            }
            for state in states
        ],
        "on_disk": [_on_shelf(shelf, held) for shelf, held in found],
        "disk_free_bytes": _free_bytes(),
        "bandwidth": _bandwidth(hardware),
    }


def _shelves() -> list[tuple[Shelf, Inventory]]:
    try:
        searched = shelves.shelves()
    except DSparkError:
        return []
    found = ((shelf, inventory.take(shelf.path)) for shelf in searched if shelf.exists)
    return [(shelf, held) for shelf, held in found if held is not None]


def _on_shelf(shelf: Shelf, held: Inventory) -> dict[str, Any]:
    models, drafters = _sized(held.models), _sized(held.drafters)
    return {
        "shelf": shelf.kind,
        "folder": shelves.short(shelf.path),
        "models": models,
        "drafters": drafters,
        "unfinished": list(held.partial),
        "used_bytes": sum(one["bytes"] for one in (*models, *drafters)),
    }


def _sized(folders: Sequence[Path]) -> list[dict[str, Any]]:
    return [
        {"name": listed_name(str(folder)), "folder": shelves.short(folder), "bytes": _weight_bytes(folder)}
        for folder in folders
    ]


def _weight_bytes(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in checkpoint.weight_files(folder))
    except OSError:
        return 0


def _free_bytes() -> int | None:
    try:
        folder = shelves.hub_cache()
        return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    except (OSError, DSparkError, StopIteration):
        return None


def _bandwidth(hardware: Hardware) -> dict[str, Any]:
    """This machine against the one of the published figures, specification against specification."""
    own, reference = hardware.published_bandwidth(), published(REFERENCE_CHIP, REFERENCE_GPU_CORES)
    measured = hardware.measured
    return {
        "measured_gb_s": measured.bandwidth.gb_s if measured else None,
        "published_gb_s": own.gb_s if own else None,
        "reference": REFERENCE_CHIP,
        "reference_gb_s": reference.bandwidth_gb_s if reference else None,
        "relative": own.gb_s / reference.bandwidth_gb_s if own and reference else None,
    }
