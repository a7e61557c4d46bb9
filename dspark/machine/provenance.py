"""What stands beside every measured number, so that it can be judged later and elsewhere."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dspark.machine import blas, load, platform, runtime

CHECKOUT = Path(__file__).parents[2]


def stamp() -> dict[str, Any]:
    """Chip, memory, software, load, date and code revision; no user name, host name or path. Unknown values are None.

    Takes a fifth of a second, to see how busy the other programs are.
    """
    here = platform.current()
    chip, system, memory, stack = here.chip(), here.system(), here.memory(), runtime.describe()
    library = blas.detect().in_use if system.name == "Linux" and stack.device == "cpu" else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "chip": chip.name,
        "cores": chip.cores,
        "core_groups": {group.name or "unnamed": group.count for group in chip.groups},
        "usable_cores": chip.usable_cores,
        "gpu_cores": chip.gpu_cores,
        "memory_bytes": memory.total_bytes,
        "os": system.label,
        "architecture": system.architecture,
        "translated": system.translated,
        "virtual": system.virtual,
        "device": stack.device,
        "python": stack.python,
        "mlx": stack.mlx,
        "mlx_lm": stack.mlx_lm,
        "mlx_dspark": stack.mlx_dspark,
        "blas": library.name if library else None,
        "git": revision(CHECKOUT),
        "load_average": load.load_average(),
        "busy_cores": load.busy_cores_now(),
    }


def revision(checkout: Path) -> str | None:
    """Short commit of a checkout, `-dirty` when it was changed since; None outside one."""
    if not (checkout / ".git").exists():
        return None
    # --no-optional-locks: a look must not disturb somebody working in the checkout.
    command = ("git", "--no-optional-locks", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
