"""What lies on a shelf: every model that a search would find there, and what came near."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dspark.errors import CheckpointError, StorageError
from dspark.hub import checkpoint, shelves, vetting


@dataclass(frozen=True)
class Inventory:
    """Folders to load from. `partial` tells of each folder whose download was begun and not finished, in a sentence."""

    models: tuple[Path, ...] = ()
    drafters: tuple[Path, ...] = ()
    partial: tuple[str, ...] = ()
    gguf: tuple[Path, ...] = ()


def take(shelf: Path) -> Inventory | None:
    """Look through a shelf; None if it cannot be read. Only headers of weight files are read, nothing is loaded."""
    found: dict[str, list[Path]] = {"models": [], "drafters": [], "gguf": []}
    partial: list[str] = []
    try:
        places = list(_places(shelf))
    except OSError:
        return None
    for place in places:
        try:
            search = shelves.open_place(place)
            if search.folder:
                found["drafters" if _is_drafter(search.folder) else "models"].append(search.folder)
            elif any(miss.endswith(checkpoint.GGUF_HINT) for miss in search.misses):
                found["gguf"].append(place)
            elif _begun(place):
                partial += search.misses[:1] or [f"{shelves.short(place)} has no snapshot"]
        except (CheckpointError, StorageError) as error:
            partial.append(str(error))
        except OSError as error:
            partial.append(f"{shelves.short(place)} cannot be read ({error.strerror})")
    return Inventory(partial=tuple(partial), **{kind: tuple(folders) for kind, folders in found.items()})


def _places(shelf: Path) -> Iterator[Path]:
    """Folders that may hold a model: those of the shelf, or those below what is no model but an organisation."""
    for folder in _folders(shelf):
        if folder.name.startswith("models--"):
            yield folder
        elif not folder.name.startswith(("datasets--", "spaces--", "kernels--")):
            inner = [] if _has_files(folder) else _readable(folder)
            yield from inner or [folder]


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir())


def _readable(folder: Path) -> list[Path]:
    try:
        return _folders(folder)
    except OSError:  # said of the folder itself
        return []


def _has_files(folder: Path) -> bool:
    try:
        return any(folder.glob("*.safetensors")) or any(folder.glob("*.gguf")) or (folder / "config.json").is_file()
    except OSError:
        return False


def _is_drafter(folder: Path) -> bool:
    try:
        return vetting.drafter_sign(folder) is not None
    except CheckpointError:  # damaged weights are the loader's to name
        return False


def _begun(place: Path) -> bool:
    """Whether weights for MLX were being fetched: a folder with a config alone is what other tools leave."""
    pattern = "snapshots/*/*.safetensors*" if place.name.startswith("models--") else "*.safetensors*"
    incomplete = (*place.glob("blobs/*.incomplete"), *place.glob(".cache/huggingface/download/**/*.incomplete"))
    return bool(incomplete) or any(not file.name.startswith(".") for file in place.glob(pattern))
