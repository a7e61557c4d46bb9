"""Disks that refuse: cannot be written, or full. Every message names the folder and the variable that moves it."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dspark.errors import StorageError


def ensure_writable(folder: Path, variable: str) -> None:
    """Create `folder` and try a file in it; raises `StorageError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise refused(error, folder, variable) from error


def ensure_room(folder: Path, size_bytes: int, variable: str) -> None:
    """Raise `StorageError` if the disk of `folder` has no `size_bytes` left."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < size_bytes:
        raise StorageError(
            f"{folder} has room for {amount(free_bytes)} and {amount(size_bytes)} are needed: "
            f"free some space, or set {variable} to a folder elsewhere"
        )


@contextmanager
def in_place_of(path: Path) -> Iterator[BinaryIO]:
    """A file for its owner alone that takes the place of `path` once it is on the disk, as a whole or not at all.

    Raises OSError.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def refused(error: OSError, folder: Path, variable: str) -> StorageError:
    """The `StorageError` for a write below `folder` that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"the disk of {folder} is full: free some space, or set {variable} to a folder elsewhere")
    return StorageError(
        f"cannot write to {folder} ({error.strerror or error}): set {variable} to one that can be written"
    )


def amount(size_bytes: int) -> str:
    """A size for people: `4.3 GB`, `98 MB`."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{round(size_bytes / 1e6)} MB"
