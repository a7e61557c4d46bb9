"""The doctor's report: all checks of this machine, the same for the terminal and for the server."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dspark.machine import blas, checks, platform, runtime
from dspark.machine.checks import Check, Folder
from dspark.machine.facts import Machine
from dspark.machine.platform import Platform


@dataclass(frozen=True)
class Report:
    """`date` is in UTC: every check tells how things stood then."""

    version: str | None
    date: str
    checks: tuple[Check, ...]

    @property
    def broken(self) -> bool:
        """Whether something must be mended before the tool can work."""
        return any(check.status == "fail" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON: `ok`, `version`, `date`, `checks` with `id`, `status`, `seen`, `todo`, `command`."""
        return {
            "ok": not self.broken,
            "version": self.version,
            "date": self.date,
            "checks": [asdict(check) for check in self.checks],
        }

    def redacted(self, home: Path, user: str) -> "Report":
        """The same without home folders and the user's name, for a public bug report."""
        return replace(self, checks=tuple(_redact(check, home, user) for check in self.checks))


def inspect(
    shelves: Sequence[Folder],
    caches: Sequence[Path],
    environment: Mapping[str, str] = os.environ,
    here: Platform | None = None,
    homeless: str | None = None,
) -> Report:
    """Run every check. `shelves` are the folders searched for models, `caches` those that downloads are written to.

    `homeless` says why these folders cannot be told, as an error would.

    Imports MLX and mlx-lm to see whether they can be; without them the report says so.
    """
    here = here or platform.current()
    stack = runtime.describe()
    found = Machine(here.chip(), here.system(), here.memory(), stack)
    return Report(
        version=stack.mlx_dspark,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        checks=(
            _python(stack.python),
            *_packages(stack.mlx, stack.mlx_lm, stack.mlx_error),
            *checks.machine_checks(found),
            *_blas(found, environment),
            *([checks.home(homeless)] if homeless else checks.folder_checks(shelves, caches)),
            *checks.environment_variables(environment),
        ),
    )


def _python(found: str) -> Check:
    wanted = runtime.required_python()
    return checks.python(found, wanted, wanted is None or runtime.satisfies(found, wanted))


def _packages(mlx: str | None, mlx_lm: str | None, mlx_error: str | None) -> list[Check]:
    mlx_lm_error = runtime.import_error("mlx_lm") if mlx_lm and not mlx_error else mlx_error
    found = []
    for name, version, error in (("mlx", mlx, mlx_error), ("mlx-lm", mlx_lm, mlx_lm_error)):
        wanted = runtime.required(name)
        fits = version is None or wanted is None or runtime.fits(version, wanted)
        found.append(checks.package(name, version, error, wanted or name, fits))
    return found


def _blas(found: Machine, environment: Mapping[str, str]) -> list[Check]:
    if sys.platform != "linux" or found.system.name != "Linux" or found.runtime.device != "cpu":
        return []
    return [checks.blas_library(blas.detect(), found.chip.features, environment)]


def _redact(check: Check, home: Path, user: str) -> Check:
    def clean(text: str | None) -> str | None:
        if text is None:
            return None
        for folder in {str(home), str(home.resolve())} - {"/"}:
            text = re.sub(re.escape(folder) + r"(?![\w.-])", "~", text)
        text = re.sub(r"/(Users|home)/[^/\s:]+", "~", text)
        return re.sub(rf"(?<![\w]){re.escape(user)}(?!\w)", "user", text) if user else text

    return replace(check, seen=clean(check.seen) or "", todo=clean(check.todo), command=clean(check.command))
