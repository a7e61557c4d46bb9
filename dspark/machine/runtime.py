"""The Python packages that do the work, and the device that MLX computes on."""

import platform
from importlib import metadata

from dspark import __version__
from dspark.machine.facts import Runtime


def describe() -> Runtime:
    """Asks MLX itself; without a working MLX the answer says why."""
    stack = Runtime(
        python=platform.python_version(), mlx_dspark=__version__, mlx=version("mlx"), mlx_lm=version("mlx-lm")
    )
    try:
        import mlx.core as mx

        gpu = mx.default_device().type == mx.DeviceType.gpu
        info = mx.device_info()
    except Exception as error:  # a broken install raises whatever its loader raises
        return Runtime(**{**vars(stack), "mlx_error": f"{type(error).__name__}: {error}"})
    return Runtime(
        **{
            **vars(stack),
            "device": "gpu" if gpu else "cpu",
            "device_name": info.get("device_name"),
            "gpu_architecture": info.get("architecture") if gpu else None,
            "working_set_bytes": info.get("max_recommended_working_set_size"),
        }
    )


def version(package: str) -> str | None:
    """Installed version of a distribution, None without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def required(package: str) -> str | None:
    """The versions of `package` that this installation of mlx-dspark asks for, as in `>=0.32.4,<0.33`."""
    from packaging.requirements import Requirement

    try:
        lines = metadata.requires("mlx-dspark") or []
    except metadata.PackageNotFoundError:
        return None
    for line in lines:
        requirement = Requirement(line)
        if requirement.name == package and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            return str(requirement.specifier)
    return None


def satisfies(found: str, specifier: str) -> bool:
    """Whether a version lies in a range."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(found, prereleases=True)
