"""What can be wrong with a machine for this tool. One function per check: facts in, a verdict and a remedy out."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from dspark.machine import blas
from dspark.machine.blas import Blas
from dspark.machine.facts import Machine, Memory, Runtime, System

Status = Literal["ok", "warn", "fail"]

GIB = 1024**3
OLDEST_MACOS = 14  # MLX has no wheels for older ones
LITTLE_MEMORY_BYTES = 2 * GIB
LITTLE_DISK_BYTES = 5 * GIB
SWAPPING_SHARE = 0.1  # of the memory
WIRED_SHARE = 0.9
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD")
VARIABLES = re.compile(
    r"MLX_\w+|HF_\w+|HUGGINGFACE_HUB_CACHE|XDG_CACHE_HOME|TRANSFORMERS_OFFLINE|LD_PRELOAD|OPENBLAS_\w+|OMP_NUM_THREADS"
)


@dataclass(frozen=True)
class Check:
    """`seen` is what was found, `todo` what to do about it, `command` a shell line that does it, ready to paste."""

    id: str
    status: Status
    seen: str
    todo: str | None = None
    command: str | None = None


class Folder(Protocol):
    """A folder that is searched for models."""

    @property
    def kind(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def exists(self) -> bool: ...


def python(found: str, wanted: str | None, fits: bool) -> Check:
    if fits:
        return Check("python", "ok", found)
    return Check("python", "fail", found, f"install Python {wanted} and make the environment anew with it")


def architecture(system: System) -> Check:
    seen = system.architecture or "unknown"
    if system.translated:
        todo = "make the environment anew with an arm64 Python: MLX does not run in a translated process"
        return Check("architecture", "fail", f"{seen}, translated by Rosetta", todo)
    if system.name == "macOS" and system.architecture == "x86_64":
        return Check("architecture", "fail", f"{seen}, an Intel Mac", "use a Mac with Apple Silicon: MLX needs one")
    return Check("architecture", "ok", seen)


def operating_system(system: System) -> Check:
    if system.name not in ("macOS", "Linux"):
        return Check("os", "fail", system.label, "use macOS or Linux: MLX runs on nothing else")
    major = re.match(r"\d+", system.version or "") if system.name == "macOS" else None
    if major and int(major.group()) < OLDEST_MACOS:
        todo = f"update to macOS {OLDEST_MACOS} or later: MLX is not built for older ones"
        return Check("os", "fail", system.label, todo)
    return Check("os", "ok", f"{system.label}, in a virtual machine" if system.virtual else system.label)


def package(name: str, found: str | None, error: str | None, wanted: str, fits: bool) -> Check:
    """An installed distribution. `error` is why it does not import, `wanted` what pip is asked for."""
    command = f"python -m pip install '{wanted}'"
    if found is None:
        return Check(name, "fail", "not installed", "install it into this environment", command)
    if error is not None:
        todo = "install it again; if that does not help, report the error shown here"
        return Check(name, "fail", f"{found} does not import ({error})", todo, f"{command} --force-reinstall")
    if not fits:
        return Check(name, "warn", found, f"install a version this tool was tested with ({wanted})", command)
    return Check(name, "ok", found)


def device(runtime: Runtime, system: System) -> Check | None:
    """Where MLX computes; nothing without MLX."""
    if runtime.device is None:
        return None
    seen = f"{runtime.device.upper()} {runtime.device_name or ''}".strip()
    if runtime.gpu_architecture:
        seen += f" ({runtime.gpu_architecture})"
    if system.name == "macOS" and runtime.device == "cpu":
        todo = "run on a Mac whose Metal GPU is visible, not over a restricted session: the CPU is many times slower"
        return Check("device", "warn", seen, todo)
    if system.name == "macOS" and system.virtual:
        todo = "measure on the Mac itself: a virtual GPU is slower, and its work can hang"
        return Check("device", "warn", f"{seen}, virtual", todo)
    return Check("device", "ok", seen)


def blas_library(found: Blas, cpu_flags: frozenset[str], environment: Mapping[str, str]) -> Check:
    """The library behind float32 products on a CPU."""
    seen = found.in_use.name if found.in_use else "none found"
    gain = "float32 gets 10 to 60 times faster"
    if found.optimized:
        core, best = environment.get("OPENBLAS_CORETYPE"), blas.core_type(cpu_flags)
        if core == "SkylakeX" and cpu_flags and best != core:
            todo = "unset OPENBLAS_CORETYPE: this processor has no AVX-512, so OpenBLAS will crash"
            return Check("blas", "fail", f"{seen} with kernels for {core}", todo, "unset OPENBLAS_CORETYPE")
        return Check("blas", "ok", seen)
    if found.in_use is not None:
        seen += ", the slow reference BLAS"
    if found.installed:
        line = blas.preload_line(found.installed, cpu_flags, environment)
        return Check("blas", "warn", seen, f"preload OpenBLAS, {gain}; for this shell:", line)
    if shutil.which("apt-get"):
        line = blas.preload_line(blas.library_folders()[0] / blas.LIBRARY, cpu_flags, environment)
        install = f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install -y {blas.PACKAGE}"
        return Check("blas", "warn", seen, f"install OpenBLAS and preload it, {gain}:", f"{install} && {line}")
    todo = f"install OpenBLAS with the system's package manager, then run this again; {gain}"
    return Check("blas", "warn", seen, todo)


def memory(found: Memory) -> Check:
    seen = f"{_gib(found.total_bytes)}, {_gib(found.available_bytes)} available"
    limit = found.gpu_wired_limit_bytes
    if limit:
        seen += f", GPU limit set to {_gib(limit)}"
        if found.total_bytes and limit > WIRED_SHARE * found.total_bytes:
            todo = "lower iogpu.wired_limit_mb: what is left for the system is so little that the Mac can lock up"
            return Check("memory", "warn", seen, todo, "sudo sysctl iogpu.wired_limit_mb=0")
    if found.available_bytes is not None and found.available_bytes < LITTLE_MEMORY_BYTES:
        return Check("memory", "warn", seen, "close programs, or take a smaller model")
    return Check("memory", "ok", seen)


def pressure(found: Memory) -> Check:
    seen = found.pressure or "unknown"
    if found.pressure in ("warning", "critical"):
        return Check("pressure", "warn", seen, "close programs before measuring: under pressure the system swaps")
    return Check("pressure", "ok", seen)


def swap(found: Memory) -> Check:
    if found.swap_used_bytes is None:
        return Check("swap", "ok", "unknown")
    seen = f"{_gib(found.swap_used_bytes)} used of {_gib(found.swap_total_bytes)}"
    if found.total_bytes and found.swap_used_bytes > SWAPPING_SHARE * found.total_bytes:
        return Check("swap", "warn", seen, "close programs before measuring, or restart: memory ran out before")
    return Check("swap", "ok", seen)


def home(trouble: str) -> Check:
    """No folder of models can be told, for want of a home folder; `trouble` is an error's message, advice included."""
    seen, _, todo = trouble.rpartition(": ")
    return Check("home", "fail", seen, todo)


def disk(folder: Path, position: int) -> Check:
    """Room in, and leave to write to, a folder that models are put into; it may not exist yet."""
    name = f"disk.{position}"
    present = next((path for path in (folder, *folder.parents) if path.is_dir()), None)
    if present is None:
        return Check(name, "fail", f"{folder} cannot be made", "choose another folder with MLX_DSPARK_HOME or HF_HOME")
    try:
        free = shutil.disk_usage(present).free
    except OSError as error:
        return Check(name, "warn", f"{folder}: {error.strerror}", "check that the volume is mounted")
    seen = f"{_gib(free)} free for {folder}"
    if not os.access(present, os.W_OK | os.X_OK):
        todo = f"make {present} writable, or choose another folder with MLX_DSPARK_HOME or HF_HOME"
        return Check(name, "fail", f"{seen}, not writable", todo)
    if free < LITTLE_DISK_BYTES:
        return Check(name, "warn", seen, "free some space: a model takes one to tens of GiB")
    return Check(name, "ok", seen)


def model_folder(folder: Folder, position: int) -> Check:
    """One of the folders searched for models, in order. Only one that the user named must exist."""
    name, seen = f"models.{position}", f"{folder.kind}: {folder.path}"
    if not folder.exists:
        if folder.kind == "extra":
            return Check(name, "warn", f"{seen}, not there", "correct MLX_DSPARK_MODEL_DIRS, or mount the volume")
        return Check(name, "ok", f"{seen}, not there")
    if not os.access(folder.path, os.R_OK | os.X_OK):
        return Check(name, "warn", f"{seen}, not readable", f"give yourself access to {folder.path}")
    return Check(name, "ok", seen)


def environment_variables(environment: Mapping[str, str]) -> list[Check]:
    """The variables that change what this tool does, those that are set; secrets are named but not shown."""
    names = sorted(name for name in environment if VARIABLES.fullmatch(name) and environment[name])
    return [_variable(name, environment[name]) for name in names] or [Check("environment", "ok", "nothing set")]


def _variable(name: str, value: str) -> Check:
    check_id = f"environment.{name}"
    if SECRET.search(name):
        return Check(check_id, "ok", "set")
    if name == "MLX_DSPARK_TRUST_REMOTE_CODE" and value.strip().lower() in ("1", "true", "yes", "on"):
        todo = "unset it unless you have read the code: checkpoints may run Python of their own"
        return Check(check_id, "warn", value, todo, f"unset {name}")
    if name == "LD_PRELOAD":
        missing = [path for path in re.split(r"[:\s]+", value) if path.startswith("/") and not Path(path).exists()]
        if missing:
            todo = "correct it: the loader passes over a file that is not there"
            return Check(check_id, "warn", f"{value}, of which {', '.join(missing)} is missing", todo)
    return Check(check_id, "ok", re.sub(r"//[^/@\s]*@", "//", value))


def machine_checks(found: Machine) -> list[Check]:
    """The checks that need nothing but the machine's facts."""
    checks = [architecture(found.system), operating_system(found.system), device(found.runtime, found.system)]
    checks += [memory(found.memory), pressure(found.memory), swap(found.memory)]
    return [check for check in checks if check is not None]


def folder_checks(shelves: Sequence[Folder], caches: Sequence[Path]) -> list[Check]:
    """Disk space of the folders written to, and each folder searched."""
    return [
        *(disk(path, position) for position, path in enumerate(caches, 1)),
        *(model_folder(shelf, position) for position, shelf in enumerate(shelves, 1)),
    ]


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"
