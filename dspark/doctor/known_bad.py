"""Versions that are known not to work together, or not to give the right numbers: known_bad.yaml."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Literal

from packaging.specifiers import SpecifierSet
from pydantic import BaseModel, ConfigDict, HttpUrl, TypeAdapter, field_validator

from dspark.machine import runtime


class KnownBad(BaseModel):
    """An entry. `packages` gives the range of versions of each package that it takes, `gpu` a pattern."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    packages: dict[str, str]
    gpu: str | None = None
    unless_set: tuple[str, ...] = ()
    status: Literal["warn", "fail"]
    what: str
    todo: str
    command: str
    source: HttpUrl

    @field_validator("packages")
    @classmethod
    def _ranges(cls, packages: dict[str, str]) -> dict[str, str]:
        for versions in packages.values():
            SpecifierSet(versions)
        return packages

    @property
    def seen(self) -> str:
        """What is wrong, and where that is said."""
        return f"{self.what} ({self.source})"

    def applies(self, installed: Callable[[str], str | None], gpu: str | None, environment: Mapping[str, str]) -> bool:
        """Whether this machine has it; a GPU that is not known is no match."""
        if self.gpu and not re.fullmatch(self.gpu, gpu or ""):
            return False
        if any(environment.get(variable) for variable in self.unless_set):
            return False
        found = {name: installed(name) for name in self.packages}
        return all(version and runtime.satisfies(version, self.packages[name]) for name, version in found.items())


@cache
def known_bad() -> tuple[KnownBad, ...]:
    """The shipped list."""
    import yaml

    text = resources.files("dspark.doctor").joinpath("known_bad.yaml").read_text(encoding="utf-8")
    return TypeAdapter(tuple[KnownBad, ...]).validate_python(yaml.safe_load(text))
