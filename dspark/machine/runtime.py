"""The Python packages that do the work, and the device that MLX computes on."""

import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module, metadata

from dspark import __version__
from dspark.machine.facts import Runtime

PACKAGE = "mlx-dspark"


def describe() -> Runtime:
    """Asks MLX itself; without a working MLX the answer says why."""
    stack = versions()
    try:
        import mlx.core as mx

        gpu = mx.default_device().type == mx.DeviceType.gpu
        info = mx.device_info()
    except Exception as error:  # a broken install raises whatever its loader raises
        return replace(stack, mlx_error=f"{type(error).__name__}: {error}")
    return with_device(stack, info, gpu=gpu)


def with_device(stack: Runtime, info: Mapping[str, object], *, gpu: bool) -> Runtime:
    """`stack` with what `mx.device_info()` tells; its keys change with the version of MLX."""
    name, architecture, working_set = (
        info.get(key) for key in ("device_name", "architecture", "max_recommended_working_set_size")
    )
    return replace(
        stack,
        device="gpu" if gpu else "cpu",
        device_name=name if isinstance(name, str) else None,
        gpu_architecture=architecture if gpu and isinstance(architecture, str) else None,
        working_set_bytes=working_set if isinstance(working_set, int) else None,
    )


def versions(mlx_error: str | None = None) -> Runtime:
    """What is installed, without a try at importing it."""
    return Runtime(
        python=platform.python_version(),
        mlx_dspark=__version__,
        mlx=version("mlx"),
        mlx_lm=version("mlx-lm"),
        mlx_error=mlx_error,
    )


def version(package: str) -> str | None:
    """Installed version of a distribution, None without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def import_error(module: str) -> str | None:
    """Why a module does not import, None when it does."""
    try:
        import_module(module)
    except Exception as error:  # a broken install raises whatever its loader raises
        return f"{type(error).__name__}: {error}"
    return None


def required(package: str) -> str | None:
    """What this installation of mlx-dspark asks pip for on this system, as in `mlx[cpu]<0.33,>=0.32.4`."""
    from packaging.requirements import Requirement

    for line in _requirements():
        requirement = Requirement(line)
        if requirement.name == package and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            requirement.marker = None
            return str(requirement)
    return None


def required_python() -> str | None:
    """The same for Python."""
    try:
        return metadata.metadata(PACKAGE)["Requires-Python"]
    except (metadata.PackageNotFoundError, KeyError):
        return None


def satisfies(found: str, specifier: str) -> bool:
    """Whether a version lies in a range such as `>=3.11`."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(found, prereleases=True)


def fits(found: str, requirement: str) -> bool:
    """Whether a version is one that a requirement such as `mlx-lm<0.33` allows."""
    from packaging.requirements import Requirement

    return Requirement(requirement).specifier.contains(found, prereleases=True)


def _requirements() -> list[str]:
    try:
        return metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return []
