"""`GET /admin/models`: pairs that are known, what is on disk, and how this machine compares with published figures."""

import shutil
from dataclasses import asdict
from typing import Any

from dspark.errors import DSparkError
from dspark.hub import registry, shelves
from dspark.hub.inventory import Held, inventory
from dspark.machine.chips import published
from dspark.machine.room import room
from dspark.server.hardware import Hardware

REFERENCE_CHIP, REFERENCE_GPU_CORES = "Apple M4 Pro", 20  # of the published speed-ups
GB = 10**9


def catalogue(hardware: Hardware) -> dict[str, Any]:
    """Answers without a model and without the network."""
    held = _held()
    here = room(hardware.machine())
    names = {one.name.lower() for one in held if one.flaw is None}
    return {
        "pairs": [
            {
                "id": pair.id,
                "target": pair.target,
                "drafter": pair.drafter,
                "mode": pair.mode,
                "peak_gb": pair.peak_ram_gb,
                "published_speedup": pair.published_speedup,
                "measured_by": pair.measured_by,
                "fit": here.verdict(int(pair.peak_ram_gb * GB)),
                "on_disk": pair.target.lower() in names,
            }
            for pair in registry.PAIRS
        ],
        "on_disk": [asdict(one) for one in held],
        "disk": _disk(held),
        "bandwidth": _bandwidth(hardware),
    }


def _held() -> list[Held]:
    try:
        return inventory()
    except DSparkError:
        return []


def _disk(held: list[Held]) -> dict[str, Any]:
    used = {kind: sum(one.size_bytes for one in held if one.shelf == kind) for kind in {one.shelf for one in held}}
    try:
        folder = shelves.hub_cache()
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    except (OSError, DSparkError, StopIteration):
        free = None
    return {"used_bytes": used, "free_bytes": free}


def _bandwidth(hardware: Hardware) -> dict[str, Any]:
    """This machine against the one of the published figures, specification against specification."""
    own, reference = hardware.published_bandwidth(), published(REFERENCE_CHIP, REFERENCE_GPU_CORES)
    measured = hardware.bandwidth
    return {
        "measured_gb_s": measured.gb_s if measured else None,
        "published_gb_s": own.gb_s if own else None,
        "reference": REFERENCE_CHIP,
        "reference_gb_s": reference.bandwidth_gb_s if reference else None,
        "relative": own.gb_s / reference.bandwidth_gb_s if own and reference else None,
    }
