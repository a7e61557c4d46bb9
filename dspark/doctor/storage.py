"""Where models lie: room for more, and each folder that is searched."""

import os
from collections.abc import Iterable
from pathlib import Path

from dspark.doctor.check import Check, Subject
from dspark.doctor.hardware import gib
from dspark.errors import StorageError
from dspark.hub import shelves
from dspark.hub.inventory import Inventory
from dspark.hub.shelves import Shelf, is_folder
from dspark.machine.volume import Volume, volume

HOME = Subject("home", "Home folder")
DISK = Subject("disk", "Disk")
MODELS = Subject("models", "Models")
LITTLE_DISK_BYTES = 5 * 1024**3
WRITTEN = ("own", "hugging face")  # the shelves that downloads go to
NAMED = 3  # partial downloads that are named


def home() -> Check | None:
    """Without a home folder no folder of models can be told; nothing to say where there is one."""
    try:
        shelves.shelves()
    except StorageError as error:
        seen, _, todo = str(error).rpartition(": ")
        return HOME.fail(seen, todo)
    return None


def searched() -> tuple[Shelf, ...]:
    """The folders that are searched for models, in order; none where they cannot be told."""
    try:
        return shelves.shelves()
    except StorageError:
        return ()


def disks(searched: Iterable[Shelf]) -> list[Check]:
    """Each folder that models are put into."""
    written = [shelf.path for shelf in searched if shelf.kind in WRITTEN]
    return [disk(path, position) for position, path in enumerate(written, 1)]


def disk(folder: Path, position: int) -> Check:
    """Room in, and leave to write to, a folder that models are put into; it may not exist yet."""
    subject = Subject(f"{DISK.id}.{position}", DISK.title)
    present = next((path for path in (folder, *folder.parents) if is_folder(path)), None)
    if present is None:
        return subject.fail(f"{folder} cannot be made", "choose another folder with MLX_DSPARK_HOME or HF_HOME")
    return room(subject, folder, present, volume(present))


def room(subject: Subject, folder: Path, present: Path, found: Volume | None) -> Check:
    """`present` is the nearest folder that exists, `found` the volume it lies on."""
    seen = f"{gib(found.free_bytes) if found else 'unknown space'} free for {folder}"
    if not os.access(present, os.W_OK | os.X_OK):
        todo = f"make {present} writable, or choose another folder with MLX_DSPARK_HOME or HF_HOME"
        return subject.fail(f"{seen}, not writable", todo)
    if found and found.free_bytes < LITTLE_DISK_BYTES:
        return subject.warn(f"{seen} on {found.mount}", "free some space: a model takes one to tens of GiB")
    return subject.ok(seen)


def model_folder(shelf: Shelf, found: Inventory | None, position: int) -> Check:
    """One of the folders searched for models, in order. Only one that the user named must exist."""
    subject, seen = Subject(f"{MODELS.id}.{position}", MODELS.title), f"{shelf.kind}: {shelf.path}"
    if not shelf.exists:
        if shelf.kind == "extra":
            return subject.warn(f"{seen}, not there", "correct MLX_DSPARK_MODEL_DIRS, or mount the volume")
        return subject.ok(f"{seen}, not there")
    if found is None:
        return subject.warn(f"{seen}, not readable", f"give yourself access to {shelf.path}")
    seen += f", {_count(len(found.models), 'model')}, {_count(len(found.drafters), 'drafter')}"
    if found.gguf:
        seen += f", {_count(len(found.gguf), 'GGUF folder')} passed over (take the models' MLX builds)"
    if found.partial:
        more = [f"{len(found.partial) - NAMED} more"] if len(found.partial) > NAMED else []
        todo = "ask for the model again to resume its download, or delete the folder"
        return subject.warn(f"{seen}; not usable: {'; '.join([*found.partial[:NAMED], *more])}", todo)
    return subject.ok(seen)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
