"""What loading a pair takes: which checkpoints are here, which would be fetched, and how much. Nothing is fetched."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dspark.errors import ModelNotFound, NetworkError
from dspark.hub import checkpoint, demo, registry, shelves, vetting
from dspark.hub.downloading import listing
from dspark.hub.resolving import locate
from dspark.hub.smollm2 import Precision


@dataclass(frozen=True)
class Part:
    """One checkpoint of a pair: `folder` where it is complete, otherwise what the Hub says of it.

    `weight_bytes` is what its weight files hold, `fetch_bytes` what a load would have to fetch first; both are None
    where they cannot be known, and `unknown` says why.
    """

    role: Literal["target", "drafter"]
    name: str
    folder: Path | None
    weight_bytes: int | None
    fetch_bytes: int | None
    unknown: str | None = None


def plan(model: str, drafter: str | None, *, precision: Precision, trust_remote_code: bool = False) -> tuple[Part, ...]:
    """The target, and its drafter where one is known or named (`none` is none); `precision` counts for the demo pair.

    What is on disk is looked at without the network.

    Raises:
        As `dspark.hub.resolving.resolve`, less `NetworkError`: a part that cannot be asked about is `unknown`.
    """
    target = _demo(precision) if model == registry.DEMO.id else _part("target", model, trust_remote_code)
    known = registry.find(model, checkpoint.read_config(target.folder) if target.folder else None)
    name = drafter or (known.drafter if known else None)
    if name is None or name == "none":
        return (target,)
    if name == registry.DEMO.id:
        return target, _on_disk("drafter", name, demo.head())
    return target, _part("drafter", name, trust_remote_code)


def _demo(precision: Precision) -> Part:
    folder = demo.on_disk(precision)
    if folder is not None:
        return _on_disk("target", registry.DEMO.id, folder)
    return Part("target", registry.DEMO.id, None, demo.model_bytes(precision), demo.fetch_bytes())


def _part(role: Literal["target", "drafter"], name: str, trust_remote_code: bool) -> Part:
    path = shelves.expanded(name, f"--{role}")
    if role == "drafter" and path.suffix.lower() == ".gguf" and path.is_file():
        return Part(role, name, path, path.stat().st_size, 0)
    kind: Literal["model", "drafter"] = "model" if role == "target" else "drafter"
    try:
        located = locate(name, kind=kind)
        if located.folder is not None:
            vetting.refuse_code(located.folder, trust_remote_code=trust_remote_code, drafter=kind == "drafter")
            if kind == "model":
                vetting.refuse_drafter(located.folder)
            return _on_disk(role, located.name, located.folder)
        listed = listing(located.name, python=vetting.trusted(trust_remote_code))
    except NetworkError as error:
        return Part(role, name, None, None, None, str(error))
    except ModelNotFound as error:
        if role == "target":
            raise
        return Part(role, name, None, None, None, str(error))
    weights = sum(size for file, size in listed.sizes.items() if file.endswith(".safetensors"))
    return Part(role, located.name, None, weights, listed.total_bytes - listed.here_bytes)


def _on_disk(role: Literal["target", "drafter"], name: str, folder: Path) -> Part:
    return Part(role, name, folder, sum(file.stat().st_size for file in checkpoint.weight_files(folder)), 0)
