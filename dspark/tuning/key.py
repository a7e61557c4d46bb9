"""What a calibration belongs to: one machine, one pair, one stack. Writers and readers both make the key here."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspark.hub import checkpoint
from dspark.machine import blas, platform, runtime
from dspark.machine.blas import Blas
from dspark.machine.facts import Chip, Memory, Runtime


@dataclass(frozen=True)
class Key:
    """Every field changes what rounds cost, or what drafts are worth. None is what this system does not have or tell.

    `target` and `drafter` are fingerprints of checkpoints (quantization included); `switches` are load options that
    change kernels or what the drafter sees.
    """

    chip: str | None
    gpu_cores: int | None
    cores: int | None
    memory_gb: int | None
    device: str | None
    blas: str | None
    mlx: str | None
    mlx_lm: str | None
    target: str
    drafter: str | None
    switches: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """Eight hex digits."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]

    def differences(self, other: "Key") -> list[str]:
        """Names of the fields in which `other` is another."""
        return [name for name, value in asdict(self).items() if asdict(other)[name] != value]


def key_for(target: Path, drafter: Path | None, switches: dict[str, object]) -> Key:
    """The key of a pair on this machine, as it is now. Imports MLX."""
    here, stack = platform.current(), runtime.describe()
    library = blas.detect() if stack.device == "cpu" and here.system().name == "Linux" else None
    return Key(
        **machine_part(here.chip(), here.memory(), stack, library),
        target=checkpoint.fingerprint(target)[:16],
        drafter=checkpoint.fingerprint(drafter)[:16] if drafter is not None else None,
        switches=tuple(sorted((name, str(value)) for name, value in switches.items())),
    )


def machine_part(chip: Chip, memory: Memory, stack: Runtime, library: Blas | None) -> dict[str, Any]:
    """The fields that tell one machine and stack from another; `library` counts where MLX computes on Linux' CPU."""
    in_use = library.in_use if library is not None and stack.device == "cpu" else None
    return {
        "chip": chip.name,
        "gpu_cores": chip.gpu_cores,
        "cores": chip.usable_cores or chip.cores,
        "memory_gb": round(memory.total_bytes / 2**30) if memory.total_bytes else None,
        "device": stack.device,
        "blas": in_use.name if in_use else None,
        "mlx": stack.mlx,
        "mlx_lm": stack.mlx_lm,
    }


def file_name(model: str, key: Key) -> str:
    """Of the profile: readable in front, unambiguous behind."""
    words = [Path(model).name or "model", key.chip or "unknown chip"]
    plain = "-".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-.")[:40] for word in words)
    return f"{plain}-{key.digest}.yaml"
