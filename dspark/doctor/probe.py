"""Trying MLX out in a process of its own: one that crashes or hangs there takes nothing else along."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspark.machine import blas, runtime
from dspark.machine.blas import Blas
from dspark.machine.facts import Runtime

TIMEOUT_S = 60.0  # the first import after an installation compiles every module


@dataclass(frozen=True)
class Stack:
    """What came of it. Each `error` is None where the step went well, or was not reached for want of MLX."""

    runtime: Runtime
    compute_error: str | None = None
    mlx_lm_error: str | None = None
    blas: Blas | None = None


def look(timeout_s: float = TIMEOUT_S) -> Stack:
    """Import MLX, compute with it, import mlx-lm."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from dspark.doctor.probe import main; main()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as late:
        return _stack(late.stdout or b"", f"it took longer than {timeout_s:g} s")
    except OSError as error:
        return _stack(b"", f"no process could be started for it ({error.strerror})")
    return _stack(done.stdout, _ending(done.returncode))


def main() -> None:
    """The other process: a JSON object a step on stdout, where nothing else writes."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries greet on stdout when they are first imported

    def tell(**fact: Any) -> None:
        print(json.dumps(fact, default=str), file=out, flush=True)

    found = runtime.describe()
    tell(runtime=asdict(found))
    if found.mlx_error:
        return
    tell(blas=asdict(blas.detect()) if sys.platform == "linux" else None)
    tell(compute_error=_compute())
    tell(mlx_lm_error=runtime.import_error("mlx_lm"))


def _compute() -> str | None:
    try:
        import mlx.core as mx

        square = mx.ones((64, 64))
        total = (square @ square).sum().item()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if total == 64**3 else f"a product that is {64**3} came out as {total}"


def _stack(told: bytes, ending: str) -> Stack:
    """From the lines that arrived. A step that none arrived for went wrong, in the way that `ending` tells."""
    facts: dict[str, Any] = {}
    for line in told.decode(errors="replace").splitlines():
        facts |= json.loads(line) if line.endswith("}") else {}
    if "runtime" not in facts:
        return Stack(runtime.versions(mlx_error=ending))
    found = Runtime(**facts["runtime"])
    if found.mlx_error:
        return Stack(found)
    library = facts.get("blas")
    paths = {key: path and Path(path) for key, path in library.items()} if library else None
    compute_error = facts.get("compute_error", ending)
    # A computation that took the process along says nothing of mlx-lm.
    mlx_lm_error = facts.get("mlx_lm_error", ending if "compute_error" in facts else None)
    return Stack(found, compute_error, mlx_lm_error, Blas(**paths) if paths else None)


def _ending(code: int) -> str:
    if code >= 0:
        return f"the process left with {code}"
    try:
        return f"the process crashed with {signal.Signals(-code).name}"
    except ValueError:
        return f"the process crashed with signal {-code}"
