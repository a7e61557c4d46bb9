"""From a name to a folder that is safe to load: the shelves first, then the network, then the vetting."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dspark.errors import CheckpointError, ModelNotFound, UsageError
from dspark.hub import checkpoint, demo, registry, shelves, vetting
from dspark.hub.downloading import Heard, download, unheard

Kind = Literal["model", "drafter"]

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


def resolve(
    name: str, *, kind: Kind, trust_remote_code: bool = False, offline: bool = False, heard: Heard = unheard
) -> Path:
    """The folder of a model or drafter given by path, `org/name`, bare name or registry id; fetched if it is not here.

    `offline` forbids the network, as `HF_HUB_OFFLINE=1` does; `heard` hears of the bytes of a download. The weights'
    headers are checked, nothing is loaded.

    Raises `ModelNotFound`, `NetworkError`, `StorageError`, `UsageError` (an empty or ambiguous name), or
    `CheckpointError` (incomplete or damaged files, a drafter offered as a model, `RemoteCodeRefused`).
    """
    if not name.strip():
        raise UsageError(f"the name of the {kind} is empty: give a folder, org/name or an id from the registry")
    trust_remote_code = vetting.trusted(trust_remote_code)

    def vet(folder: Path) -> None:
        vetting.refuse_code(folder, trust_remote_code=trust_remote_code, drafter=kind == "drafter")
        if kind == "model":
            vetting.refuse_drafter(folder)

    if name == registry.DEMO.id:
        return demo.target("fp32") if kind == "model" else demo.head()
    located = locate(name, kind=kind, offline=offline)
    folder = located.folder
    if folder is None:
        folder = download(located.name, python=trust_remote_code, inspect=vet, heard=heard)
        flaw = checkpoint.flaw(folder)
        if flaw:
            raise CheckpointError(f"{located.name} as it stands on the Hugging Face Hub is no model to load: it {flaw}")
    tensors = checkpoint.tensor_names(folder)
    vet(folder)
    if kind == "model":
        checkpoint.check_layers(folder, len(tensors))
    return folder


@dataclass(frozen=True)
class Located:
    """`name` less the registry's ids, and the complete folder found under it; None where it has to be fetched."""

    name: str
    folder: Path | None


def locate(name: str, *, kind: Kind, offline: bool = False) -> Located:
    """Where a model or drafter (other than the demo's) lies, found without the network.

    Raises `ModelNotFound` where it is not here and must or may not be asked of the Hub, and as `shelves.search`.
    """
    pair = next((pair for pair in registry.PAIRS if pair.id == name), None)
    if pair is not None and not Path(name).is_dir():
        name = pair.target if kind == "model" else pair.drafter or name
    found = shelves.search(name)
    if found.folder is None:
        _refuse_search(name, found, offline=offline)
    return Located(name, found.folder)


def _refuse_search(name: str, found: shelves.Search, *, offline: bool) -> None:
    """Raise `ModelNotFound` unless `name` may be asked of the Hub."""
    if name.startswith(("/", ".", "~")) or not _REPOSITORY.fullmatch(name):
        raise ModelNotFound(f"{name!r} is no folder here, nor a name like org/model: check the path")
    if offline or _offline_by_environment():
        searched = ", ".join(shelves.short(shelf.path) for shelf in shelves.shelves())
        misses = f" ({'; '.join(found.misses)})" if found.misses else ""
        raise ModelNotFound(
            f"{name} is not on this disk{misses}: searched {searched}; go online to fetch it (HF_HUB_OFFLINE=0), "
            "or put it into one of these folders"
        )


def _offline_by_environment() -> bool:
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.strip().lower() in {"1", "true", "yes", "on"}
