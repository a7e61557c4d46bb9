"""The Python side: the interpreter, this package's own version, and the packages it needs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from dspark import __version__
from dspark.doctor.check import Check, Subject
from dspark.doctor.probe import Stack
from dspark.machine import runtime

VERSION = Subject("version", "mlx-dspark")
PYTHON = Subject("python", "Python")
MLX = Subject("mlx", "mlx")
MLX_LM = Subject("mlx-lm", "mlx-lm")
REQUIREMENTS = Subject("requirements", "Requirements")
KNOWN_BAD = Subject("known-bad", "Known trouble")

SHOWN = ("transformers", "tokenizers", "huggingface-hub", "numpy")


def version() -> Check:
    """The code that runs against what pip noted when it was installed."""
    noted = runtime.version(runtime.PACKAGE)
    if noted is None:
        return VERSION.ok(f"{__version__}, not installed as a package")
    if noted != __version__:
        todo = "install it again, so that its requirements are those of the code that runs"
        return VERSION.warn(f"{__version__}, installed as {noted}", todo, f"python -m pip install {runtime.PACKAGE}")
    return VERSION.ok(__version__)


def python(found: str, wanted: str | None) -> Check:
    if wanted is None or runtime.satisfies(found, wanted):
        return PYTHON.ok(found)
    return PYTHON.fail(found, f"install Python {wanted} and make the environment anew with it")


def mlx(stack: Stack) -> Check:
    return package(MLX, stack.runtime.mlx, stack.runtime.mlx_error, runtime.required("mlx"))


def mlx_lm(stack: Stack) -> Check:
    error = "MLX is missing below it" if stack.runtime.mlx_error else stack.mlx_lm_error
    return package(MLX_LM, stack.runtime.mlx_lm, error, runtime.required("mlx-lm"))


def package(subject: Subject, found: str | None, error: str | None, wanted: str | None) -> Check:
    """An installed distribution. `error` is why it does not import, `wanted` what pip is asked for."""
    wanted = wanted or subject.id
    command = f"python -m pip install '{wanted}'"
    if found is None:
        return subject.fail("not installed", "install it into this environment", command)
    if error is not None:
        todo = "install it again; if that does not help, report the error shown here"
        return subject.fail(f"{found} does not import ({error})", todo, f"{command} --force-reinstall")
    if not runtime.fits(found, wanted):
        return subject.warn(found, f"install a version this tool was tested with ({wanted})", command)
    return subject.ok(found)


def requirements() -> Check:
    """Whether everything below this package is there, in versions that suit each other."""
    look = cache(_distribution)
    unmet = sorted(set(unmet_requirements(runtime.PACKAGE, look)), key=str)
    versions = ", ".join(f"{name} {found.version}" for name in SHOWN if (found := look(name)))
    if look(runtime.PACKAGE) is None:
        return REQUIREMENTS.ok(f"unknown, because mlx-dspark is not installed as a package; {versions}")
    if not unmet:
        return REQUIREMENTS.ok(f"met; {versions}")
    wanted = " ".join(f"'{requirement}'" for requirement in dict.fromkeys(requirement for _, requirement, _ in unmet))
    complaints = "; ".join(f"{who} wants {what}, here is {found or 'none'}" for who, what, found in unmet)
    todo = "install what suits all; if pip finds nothing that does, make a new environment for this tool alone"
    return REQUIREMENTS.warn(complaints, todo, f"python -m pip install {wanted}")


@dataclass(frozen=True)
class Distribution:
    """An installed package: its version, and what it asks pip for."""

    version: str
    requires: tuple[str, ...] = ()


def unmet_requirements(root: str, look: Callable[[str], Distribution | None]) -> Iterator[tuple[str, str, str | None]]:
    """Who wants what, and which version is there instead; over everything that `root` brings along."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion

    todo, seen = [(root, "")], set()
    while todo:
        asking, extra = todo.pop()
        distribution = look(asking)
        if (asking, extra) in seen or distribution is None:
            continue
        seen.add((asking, extra))
        for line in distribution.requires:
            # What its own author wrote amiss is not for the user to mend.
            with suppress(InvalidRequirement, InvalidVersion):
                requirement = Requirement(line)
                if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                    continue
                requirement.marker = None
                found = look(requirement.name)
                todo += [(requirement.name, part) for part in ("", *requirement.extras)]
                if found is None or not requirement.specifier.contains(found.version, prereleases=True):
                    yield asking, str(requirement), found.version if found else None


def known_trouble(
    stack: Stack, environment: Mapping[str, str], installed: Callable[[str], str | None] = runtime.version
) -> list[Check]:
    """Every entry of known_bad.yaml that applies here."""
    from dspark.doctor.known_bad import known_bad

    gpu = stack.runtime.gpu_architecture
    entries = known_bad()
    found = [
        Check(f"{KNOWN_BAD.id}.{entry.id}", KNOWN_BAD.title, entry.status, entry.seen, entry.todo, entry.command, None)
        for entry in entries
        if entry.applies(installed, gpu, environment)
    ]
    return found or [KNOWN_BAD.ok(f"none of {len(entries)} known combinations")]


def _distribution(package: str) -> Distribution | None:
    try:
        found = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    return Distribution(found.version, tuple(found.requires or ()))
