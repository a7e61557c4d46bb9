"""The machine itself: architecture, system, device, BLAS, memory, power and heat. Facts in, a verdict out."""

import os
import re
import shutil
from collections.abc import Mapping

from dspark.doctor.check import Check, Subject
from dspark.doctor.probe import Stack
from dspark.machine import blas
from dspark.machine.blas import Blas
from dspark.machine.facts import Memory, System
from dspark.machine.watch import Conditions

ARCHITECTURE = Subject("architecture", "Architecture")
SYSTEM = Subject("os", "System")
DEVICE = Subject("device", "Device")
BLAS = Subject("blas", "BLAS")
MEMORY = Subject("memory", "Memory")
PRESSURE = Subject("pressure", "Memory pressure")
SWAP = Subject("swap", "Swap")
POWER = Subject("power", "Power")
HEAT = Subject("thermal", "Heat")
LOAD = Subject("load", "Other programs")

GIB = 1024**3
OLDEST_MACOS = 14  # MLX has no wheels for older ones
LITTLE_MEMORY_BYTES = 2 * GIB
SWAPPING_SHARE = 0.1  # of the memory
WIRED_SHARE = 0.9


def architecture(system: System) -> Check:
    seen = system.architecture or "unknown"
    if system.translated:
        todo = "make the environment anew with an arm64 Python: MLX does not run in a translated process"
        return ARCHITECTURE.fail(f"{seen}, translated by Rosetta", todo)
    if system.name == "macOS" and system.architecture == "x86_64":
        return ARCHITECTURE.fail(f"{seen}, an Intel Mac", "use a Mac with Apple Silicon: MLX needs one")
    return ARCHITECTURE.ok(seen)


def operating_system(system: System) -> Check:
    if system.name not in ("macOS", "Linux"):
        return SYSTEM.fail(system.label, "use macOS or Linux: MLX runs on nothing else")
    major = re.match(r"\d+", system.version or "") if system.name == "macOS" else None
    if major and int(major.group()) < OLDEST_MACOS:
        return SYSTEM.fail(system.label, f"update to macOS {OLDEST_MACOS} or later: MLX is not built for older ones")
    return SYSTEM.ok(f"{system.label}, in a virtual machine" if system.virtual else system.label)


def device(stack: Stack, system: System) -> Check | None:
    """Where MLX computes, and whether it does; nothing without MLX."""
    found = stack.runtime
    if found.device is None:
        return None
    seen = f"{found.device.upper()} {found.device_name or ''}".strip()
    if found.gpu_architecture:
        seen += f" ({found.gpu_architecture})"
    if stack.compute_error:
        todo = "see the other findings; if none explains it, restart the machine, then install MLX again"
        return DEVICE.fail(f"{seen} does not compute: {stack.compute_error}", todo)
    if system.name == "macOS" and found.device == "cpu":
        todo = "run on a Mac whose Metal GPU is visible, not over a restricted session: the CPU is many times slower"
        return DEVICE.warn(seen, todo)
    if system.name == "macOS" and system.virtual:
        todo = "measure on the Mac itself: a virtual GPU is slower, and its work can hang"
        return DEVICE.warn(f"{seen}, virtual", todo)
    return DEVICE.ok(seen)


def blas_library(found: Blas, cpu_flags: frozenset[str], environment: Mapping[str, str]) -> Check:
    """The library behind float32 products on a CPU."""
    seen = found.in_use.name if found.in_use else "none found"
    gain = "float32 gets 10 to 60 times faster"
    if found.optimized:
        core, best = environment.get("OPENBLAS_CORETYPE"), blas.core_type(cpu_flags)
        if core == "SkylakeX" and cpu_flags and best != core:
            todo = "unset OPENBLAS_CORETYPE: this processor has no AVX-512, so OpenBLAS will crash"
            return BLAS.fail(f"{seen} with kernels for {core}", todo, "unset OPENBLAS_CORETYPE")
        return BLAS.ok(seen)
    if found.in_use is not None:
        seen += ", the slow reference BLAS"
    if found.installed:
        line = blas.preload_line(found.installed, cpu_flags, environment)
        return BLAS.warn(seen, f"preload OpenBLAS, {gain}; for this shell:", line)
    if shutil.which("apt-get"):
        line = blas.preload_line(blas.library_folders()[0] / blas.LIBRARY, cpu_flags, environment)
        install = f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install -y {blas.PACKAGE}"
        return BLAS.warn(seen, f"install OpenBLAS and preload it, {gain}:", f"{install} && {line}")
    return BLAS.warn(seen, f"install OpenBLAS with the system's package manager, then run this again; {gain}")


def memory(found: Memory) -> Check:
    seen = f"{gib(found.total_bytes)}, {gib(found.available_bytes)} available"
    limit = found.gpu_wired_limit_bytes
    if limit:
        seen += f", GPU limit set to {gib(limit)}"
        if found.total_bytes and limit > WIRED_SHARE * found.total_bytes:
            todo = "lower iogpu.wired_limit_mb: what is left for the system is so little that the Mac can lock up"
            return MEMORY.warn(seen, todo, "sudo sysctl iogpu.wired_limit_mb=0")
    if found.available_bytes is not None and found.available_bytes < LITTLE_MEMORY_BYTES:
        return MEMORY.warn(seen, "close programs, or take a smaller model")
    return MEMORY.ok(seen)


def pressure(found: Memory) -> Check:
    seen = found.pressure or "unknown"
    if found.pressure in ("warning", "critical"):
        return PRESSURE.warn(seen, "close programs before measuring: under pressure the system swaps")
    return PRESSURE.ok(seen)


def swap(found: Memory) -> Check:
    if found.swap_used_bytes is None:
        return SWAP.ok("unknown")
    seen = f"{gib(found.swap_used_bytes)} used of {gib(found.swap_total_bytes)}"
    if found.total_bytes and found.swap_used_bytes > SWAPPING_SHARE * found.total_bytes:
        return SWAP.warn(seen, "close programs before measuring, or restart: memory ran out before")
    return SWAP.ok(seen)


def power(found: Conditions) -> Check:
    source = {"mains": "mains", "battery": "battery", None: "source unknown"}[found.power_source]
    seen = f"{source}, energy mode {found.power_mode or 'unknown'}"
    disturbed = found.disturbed_by()
    spoiling = [disturbed[kind] for kind in ("battery", "low power") if kind in disturbed]
    if spoiling:
        return POWER.warn(seen, "; ".join(spoiling))
    return POWER.ok(seen)


def heat(found: Conditions) -> Check:
    """A Mac that does not tell of a limit may be hot all the same: then it is unknown."""
    seen = f"thermal pressure {found.thermal or 'unknown'}"
    hot = found.disturbed_by().get("hot")
    return HEAT.warn(seen, _remedy(hot)) if hot else HEAT.ok(seen)


def load(found: Conditions) -> Check:
    """How busy other programs keep the processor."""
    if found.others_cpu is None:
        return LOAD.ok("unknown")
    seen = f"use {found.others_cpu:.0%} of the processor"
    busy = found.disturbed_by().get("busy")
    return LOAD.warn(seen, _remedy(busy)) if busy else LOAD.ok(seen)


def _remedy(disturbance: str) -> str:
    """What such a sentence advises; what it tells has been said."""
    told, _, advice = disturbance.partition("; ")
    return advice or told


def gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"
