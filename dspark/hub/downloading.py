"""Fetching a checkpoint from the Hugging Face Hub into its own cache, where other tools find it too."""

import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any

from dspark.errors import CheckpointError, DSparkError, ModelNotFound, NetworkError
from dspark.hub import checkpoint, shelves, storage

_LOG = logging.getLogger(__name__)
_FIRST_ANSWER_SECONDS = 10.0
_STORAGE_ERRNOS = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EEXIST,
    errno.EFBIG,
    errno.EIO,
    errno.EISDIR,
    errno.ENOENT,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
_SUFFIXES = {".json", ".safetensors", ".jinja", ".model", ".tiktoken", ".txt"}


# Hears how many bytes of how many are here, None where that is not known; what it raises ends the download.
Heard = Callable[[int | None, int], None]


def unheard(done_bytes: int | None, total_bytes: int) -> None:
    """Nobody wants to know."""


def download(repository: str, *, python: bool, inspect: Callable[[Path], None], heard: Heard = unheard) -> Path:
    """Fetch `repository` (`org/name`) and return its folder in the Hugging Face cache; an earlier attempt is resumed.

    The JSON files come first and `inspect` sees them alone: what it refuses costs no weights. Python files come only
    if `python` is set. `heard` is called from the library's threads. Raises `ModelNotFound` (unknown or gated),
    `NetworkError`, `StorageError`, `CheckpointError`.
    """
    cache = shelves.hub_cache()
    storage.ensure_writable(cache, "HF_HOME")
    with _one_line_errors(repository, cache):
        return _download(repository, cache, python, inspect, heard)


@dataclass(frozen=True)
class Listing:
    """What a download of a repository consists of; `here_bytes` of it are in the cache already."""

    sizes: Mapping[str, int]
    here_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes.values())


def listing(repository: str, *, python: bool = False) -> Listing:
    """Ask the Hub what `download` would fetch. Raises as it does; nothing is written."""
    cache = shelves.hub_cache()
    with _one_line_errors(repository, cache):
        return _listing(repository, cache, python)


@contextmanager
def _one_line_errors(repository: str, cache: Path) -> Iterator[None]:
    try:
        with _quiet_library():
            yield
    except DSparkError:
        raise
    except Exception as error:  # whatever the library and its transports raise, the user needs one line
        raise _translated(error, repository, cache) from error


def _endpoint() -> str | None:
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None


def _listing(repository: str, cache: Path, python: bool) -> Listing:
    from huggingface_hub import HfApi

    # Asked by itself because snapshot_download waits without a limit for a network that never answers.
    info = HfApi(endpoint=_endpoint()).model_info(repository, files_metadata=True, timeout=_FIRST_ANSWER_SECONDS)
    files = info.siblings or []
    sizes = {file.rfilename: file.size or 0 for file in files if _wanted(file.rfilename, python)}
    if not any(name.endswith(".safetensors") for name in sizes):
        gguf = any(file.rfilename.endswith(".gguf") for file in files)
        raise CheckpointError(f"{repository} {checkpoint.GGUF_HINT if gguf else 'holds no *.safetensors to run'}")
    if "config.json" not in sizes:
        raise CheckpointError(f"{repository} has no config.json: it is no model that can be run")
    snapshot = cache / f"models--{repository.replace('/', '--')}" / "snapshots" / str(info.sha)
    return Listing(sizes, sum(size for name, size in sizes.items() if (snapshot / name).exists()))


def _download(repository: str, cache: Path, python: bool, inspect: Callable[[Path], None], heard: Heard) -> Path:
    from huggingface_hub import snapshot_download

    listed = _listing(repository, cache, python)
    sizes, here_bytes, total_bytes, endpoint = listed.sizes, listed.here_bytes, listed.total_bytes, _endpoint()
    storage.ensure_room(cache, total_bytes - here_bytes, "HF_HOME")
    _LOG.info("fetching %s, %s, into %s", repository, storage.amount(total_bytes - here_bytes), shelves.short(cache))

    with _progress(here_bytes, total_bytes, heard) as bar:

        def fetch(names: list[str]) -> Path:
            patterns = [escape(name) for name in names]
            return Path(
                snapshot_download(
                    repository, cache_dir=cache, endpoint=endpoint, allow_patterns=patterns, tqdm_class=bar
                )
            )

        inspect(fetch([name for name in sizes if name.endswith(".json")]))
        return fetch(list(sizes))


def _wanted(name: str, python: bool) -> bool:
    path = PurePosixPath(name)
    if len(path.parts) > 1 or path.name.startswith((".", "consolidated")):  # other packagings of the same weights
        return False
    return path.suffix in _SUFFIXES or (python and path.suffix == ".py")


@contextmanager
def _progress(here_bytes: int, total_bytes: int, heard: Heard) -> Iterator[Any]:
    """A bar class for the library: it moves one rich bar on a terminal, and is where signals reach its threads.

    Left alone, the library answers Ctrl-C by waiting for every file that is under way to arrive, and an orderly end by
    SIGTERM or SIGHUP likewise.
    """
    from huggingface_hub.utils.tqdm import tqdm
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(bar_width=None), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), expand=True)
    task = progress.add_task("", total=total_bytes, completed=here_bytes)
    stopping = threading.Event()
    heard(here_bytes, total_bytes)

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # Of the library's bars count the one of bytes that reach the disk, not that of files or of the wire.
            self.counts = kwargs.get("unit") == "B" and not str(kwargs.get("name")).endswith("transfer")
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if stopping.is_set():
                raise RuntimeError("interrupted")
            if self.counts:
                progress.advance(task, n or 0)
                heard(int(progress.tasks[0].completed), total_bytes)

    before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()
        before[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)
            if callable(handler):
                before[number] = handler
                signal.signal(number, stop)
    try:
        with progress:
            yield Bar
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Silence the library's own warnings on retries and tokens: what matters comes out as an error."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _translated(error: Exception, repository: str, cache: Path) -> DSparkError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return ModelNotFound(
            f"{repository} is gated: accept its licence on its page on the Hub, log in with 'hf auth login', run again"
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        searched = ", ".join(shelves.short(shelf.path) for shelf in shelves.shelves())
        return ModelNotFound(
            f"no model {repository}: it is not in {searched}, and the Hugging Face Hub knows none (or it is private: "
            "'hf auth login'); check the spelling"
        )
    local = not isinstance(error, errors.HfHubHTTPError | errors.LocalEntryNotFoundError | ConnectionError)
    if isinstance(error, OSError) and local and error.errno in _STORAGE_ERRNOS:
        return storage.refused(error, cache, "HF_HOME")
    return NetworkError(
        f"{repository} is not on this disk and could not be fetched from the Hugging Face Hub "
        f"({' '.join(str(error).split()) or type(error).__name__}): check the network and run again, or give a folder"
    )
