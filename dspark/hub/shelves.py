"""Is a model on disk, and where: the one answer for every command, found without the network.

A shelf is a folder that may hold models. They are searched in this order:

1. the folders of `MLX_DSPARK_MODEL_DIRS` (separated like PATH),
2. the tool's own cache, `models` in `MLX_DSPARK_HOME` (`~/.mlx-dspark`),
3. the Hugging Face cache (`HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`),
4. LM Studio's folders.

`org/name` is found on each of them as `org/name`, `org--name`, `org_name`, `name` and in the Hugging Face cache's own
layout; a bare `name` also under any organisation. A name that is an existing folder is that folder, before all shelves.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Literal

from dspark.errors import CheckpointError, StorageError, UsageError
from dspark.hub import checkpoint

_LONGEST_NAME_BYTES = 240  # with what the layouts put around it, as long as a folder's name may be

ShelfKind = Literal["extra", "own", "hugging face", "lm studio"]


@dataclass(frozen=True)
class Shelf:
    """A folder that is searched for models, whether or not it exists."""

    kind: ShelfKind
    path: Path
    exists: bool


@dataclass(frozen=True)
class Search:
    """The complete model found under a name, or None and what is wrong with each folder that came near."""

    folder: Path | None
    misses: tuple[str, ...] = ()


def home() -> Path:
    """The tool's own folder, which may not exist yet; `StorageError` if it lies in a home folder that is not known."""
    return expanded(os.environ.get("MLX_DSPARK_HOME") or "~/.mlx-dspark", "MLX_DSPARK_HOME")


def hub_cache() -> Path:
    """The Hugging Face cache in force now. (The library reads the same variables, but only once, when imported.)"""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    fallback = os.path.join(os.environ.get("HF_HOME") or os.path.join(base, "huggingface"), "hub")  # noqa: PTH118
    path = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or fallback
    return expanded(os.path.expandvars(path), "HF_HOME")


def expanded(path: str, variable: str) -> Path:
    """`path` with its `~` replaced; `StorageError` where there is no such home folder and `variable` has to help."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise StorageError(
            f"the home folder of {path} is not known: set HOME, or set {variable} to a folder elsewhere"
        ) from error


def spelled_out(path: str) -> Path:
    """`path` with its `~` replaced, or as it is where there is no such home folder: nothing lies there then."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def shelves() -> tuple[Shelf, ...]:
    """Every folder that is searched, in order; `StorageError` if the home folder that one lies in is not known."""
    dirs = "MLX_DSPARK_MODEL_DIRS"
    extra = [expanded(part, dirs) for part in os.environ.get(dirs, "").split(os.pathsep) if part]
    lm_studio = []
    with suppress(RuntimeError):  # without a home folder, LM Studio has none either
        lm_studio = [Path.home() / path for path in (".lmstudio/models", ".cache/lm-studio/models")]
    places: list[tuple[ShelfKind, Path]] = [
        *(("extra", path) for path in extra),
        ("own", home() / "models"),
        ("hugging face", hub_cache()),
        *(("lm studio", path) for path in lm_studio),
    ]
    return tuple(Shelf(kind, path, is_folder(path)) for kind, path in places)


def search(name: str) -> Search:
    """Look for a model by path, `org/name` or bare name.

    Raises `CheckpointError` for an existing path that is not a model, `UsageError` for a bare name that two
    organisations share, `StorageError` for a folder that cannot be read.
    """
    path = _as_path(name)
    if path is not None:
        if not path.is_dir():
            raise CheckpointError(f"{path} is a file: name the folder that holds the model")
        found = open_place(path)
        if found.folder is None:
            raise CheckpointError("; ".join(found.misses) or f"{path} holds no model")
        return found
    misses: list[str] = []
    for shelf in shelves():
        searches = [open_place(place) for place in _places(shelf.path, name)]
        folders = [search.folder for search in searches if search.folder]
        if len(folders) > 1 and "/" not in name:
            raise UsageError(f"{name!r} could be {' or '.join(short(folder) for folder in folders)}: say which")
        if folders:
            return Search(folders[0])
        misses += [miss for search in searches for miss in search.misses]
    return Search(None, tuple(misses))


def open_place(place: Path) -> Search:
    """What a folder holds: a model, or a repository of the Hugging Face cache whose best revision counts."""
    folders = _revisions(place) if place.name.startswith("models--") else [place]
    misses = []
    for folder in folders:
        flaw = checkpoint.flaw(folder)
        if flaw is None:
            return Search(folder)
        misses.append(f"{short(folder)} {flaw}")
    return Search(None, tuple(misses))


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; not if that cannot be told."""
    try:
        return path.is_dir()
    except OSError:
        return False


def short(path: Path) -> str:
    """A path for messages, with the home folder as `~`."""
    try:
        return str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(path)


def _as_path(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except PermissionError as error:
        raise StorageError(f"{name} cannot be read ({error.strerror}): check its permissions") from error
    except (OSError, RuntimeError):  # a name too long for a path, the home of an unknown user
        return None


def _places(shelf: Path, name: str) -> list[Path]:
    """Folders of a shelf that may hold the model, best first: its own, or its repository in the Hugging Face layout."""
    parts = name.split("/")
    if len(parts) > 2 or any(not part or part.startswith(".") for part in parts):
        return []
    if len(name.encode(errors="surrogateescape")) > _LONGEST_NAME_BYTES:
        return []
    if len(parts) == 2:
        organisation, base = parts
        forms = (name, f"{organisation}--{base}", f"{organisation}_{base}", f"models--{organisation}--{base}", base)
        places = [shelf / form for form in forms]
    else:
        patterns = (f"[!.]*/{escape(name)}", f"[!.]*--{escape(name)}", f"[!.]*_{escape(name)}")
        places = [shelf / name, *(place for pattern in patterns for place in sorted(shelf.glob(pattern)))]
    return [place for place in places if is_folder(place)]


def _revisions(repository: Path) -> list[Path]:
    """Snapshots of one model in the Hugging Face layout: what `main` points to, then the newest first."""
    folder, reference = repository / "snapshots", repository / "refs" / "main"
    main = folder / reference.read_text().strip() if reference.is_file() else None
    revisions = [path for path in folder.iterdir() if path.is_dir()] if is_folder(folder) else []
    return sorted(revisions, key=lambda path: (path == main, path.stat().st_mtime), reverse=True)
