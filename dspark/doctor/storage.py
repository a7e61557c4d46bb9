"""Where models lie: room for more, and each folder that is searched."""

import os
from pathlib import Path

from dspark.doctor.check import Check, Subject
from dspark.doctor.hardware import gib
from dspark.hub.inventory import Inventory
from dspark.hub.shelves import Shelf, is_folder
from dspark.machine.volume import Volume, volume

HOME = Subject("home", "Home folder")
LITTLE_DISK_BYTES = 5 * 1024**3
WRITTEN = ("own", "hugging face")  # the shelves that downloads go to
NAMED = 3  # partial downloads that are named


def home(trouble: str) -> Check:
    """No folder of models can be told, for want of a home folder; `trouble` is an error's message, advice included."""
    seen, _, todo = trouble.rpartition(": ")
    return HOME.fail(seen, todo)


def disk(folder: Path, position: int) -> Check:
    """Room in, and leave to write to, a folder that models are put into; it may not exist yet."""
    subject = Subject(f"disk.{position}", "Disk")
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
    subject, seen = Subject(f"models.{position}", "Models"), f"{shelf.kind}: {shelf.path}"
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
