"""Which value counts: flag over variable over file over default, with the origin of each kept beside it."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark.errors import StorageError, UsageError
from dspark.hub import shelves
from dspark.regular import special
from dspark.settings import file
from dspark.settings.kinds import ApiKey
from dspark.settings.table import (
    SECTIONS,
    SETTINGS,
    Cache,
    Generation,
    Memory,
    Model,
    Origin,
    Server,
    Setting,
    Speculation,
)

PREFIX = "MLX_DSPARK_"
# Variables that are no settings: where things lie, and switches for one run.
OTHERS = frozenset(
    {
        "MLX_DSPARK_DEMO_WHEEL",
        "MLX_DSPARK_HOME",
        "MLX_DSPARK_MODEL_DIRS",
        "MLX_DSPARK_REFERENCE_HEADS",
        "MLX_DSPARK_SLOW_ROUND_LOG_S",
        "MLX_DSPARK_STREAM_KEEPALIVE_S",
    }
)
_STRONGEST_FIRST: tuple[Origin, ...] = ("flag", "variable", "file")
_SHOWN = 60
_KEY_FILE_BYTES = 4096
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Given:
    """A value and where it came from: `place` is a flag, a variable, or a line of the settings file."""

    value: Any
    origin: Origin
    place: str | None


@dataclass(frozen=True)
class Settings:
    """Every setting, typed, by section; `given` has each one's origin by name."""

    model: Model
    speculation: Speculation
    generation: Generation
    server: Server
    memory: Memory
    cache: Cache
    given: Mapping[str, Given]

    def origin(self, name: str) -> Origin:
        """Where the value of `name` came from."""
        return self.given[name].origin

    def from_flags(self) -> dict[str, Any]:
        """The values that were given as flags, by name."""
        return {name: one.value for name, one in self.given.items() if one.origin == "flag"}

    def as_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Section → name → value, origin and place, ready for JSON; a secret is only said to be there."""
        shown: dict[str, dict[str, dict[str, Any]]] = {section: {} for section in SECTIONS}
        for name, setting in SETTINGS.items():
            one = self.given[name]
            value = "(hidden)" if setting.secret and one.value is not None else one.value
            shown[setting.section][name] = {"value": value, "origin": one.origin, "place": one.place}
        return shown


def resolve(flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings in force, for flags given by setting name (None: not given) and the variables of `environment`.

    What stands beside a model in one source belongs to that model: where a stronger source names another model, the
    weaker source's drafter, mode and the like are passed over.

    Raises:
        UsageError: a value that is none of its kind, or a settings file that cannot be meant.
        StorageError: the settings file cannot be read.
    """
    environment = os.environ if environment is None else environment
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    sources: dict[Origin, dict[str, Given]] = {
        "flag": {name: Given(value, "flag", SETTINGS[name].flag) for name, value in given.items()},
        "variable": _variables(environment),
        "file": _file(),
    }
    _settle_model(sources)
    chosen = {}
    for name, setting in SETTINGS.items():
        found = [sources[origin][name] for origin in _STRONGEST_FIRST if name in sources[origin]]
        chosen[name] = found[0] if found else Given(setting.default, "default", None)
    sections = {
        section: kind(**{name: chosen[name].value for name, row in SETTINGS.items() if row.section == section})
        for section, kind in SECTIONS.items()
    }
    return Settings(**sections, given=chosen)


def read(setting: Setting, value: object, place: str) -> Any:
    """`value` as its kind has it.

    Raises:
        UsageError: it is none; the message names the place, the value (but not a secret) and what is wanted.
    """
    try:
        return setting.kind.read(value)
    except ValueError as error:
        if isinstance(setting.kind, ApiKey):
            raise UsageError(f"{place}: {error}") from error
        raise UsageError(f"{place}: {_shown(value)} is not possible; give {setting.kind.wanted}") from error


def api_key(settings: Settings) -> str | None:
    """The API key: given itself or by a file, whichever source is stronger; None without one.

    Raises:
        UsageError: both are given by one source, or the file holds no key that can be one.
        StorageError: the file cannot be read.
    """
    key, named = settings.given["api_key"], settings.given["api_key_file"]
    if named.value is None:
        return settings.server.api_key
    if key.value is not None:
        if key.origin == named.origin:
            raise UsageError(f"{key.place} and {named.place} both give a key: leave one of them")
        if _STRONGEST_FIRST.index(key.origin) < _STRONGEST_FIRST.index(named.origin):
            return settings.server.api_key
    path = shelves.expanded(str(named.value), str(named.place))
    try:
        if special(path) and not path.is_fifo():
            raise UsageError(f"{named.place}: {path} is no file")
        with path.open("rb") as stream:
            line = stream.read(_KEY_FILE_BYTES).decode("utf-8", "replace").partition("\n")[0].rstrip("\r")
    except OSError as error:
        raise StorageError(f"{named.place}: {path} cannot be read ({error.strerror})") from error
    return str(read(SETTINGS["api_key"], line, f"{named.place} {path}"))


def _variables(environment: Mapping[str, str]) -> dict[str, Given]:
    by_variable = {setting.variable: setting for setting in SETTINGS.values() if "variable" in setting.sources}
    found = {}
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        setting = by_variable.get(variable)
        if setting is not None:
            if environment[variable]:  # set to nothing is how shells and CI unset a variable
                found[setting.name] = Given(read(setting, environment[variable], variable), "variable", variable)
        elif variable not in OTHERS:
            near = file.nearest(variable, [*by_variable, *OTHERS])
            meant = f"did you mean {near}?" if near else "mlx-dspark --show-config lists all settings"
            _LOG.warning("the variable %s means nothing here; %s", variable, meant)
    return found


def _file() -> dict[str, Given]:
    try:
        path = file.path()
    except StorageError:  # who needs the home folder will say so
        return {}
    found = {}
    for name, row in file.read(path).items():
        if row.value is not None:
            place = f"{shelves.short(path)} line {row.line}"
            found[name] = Given(read(row.setting, row.value, f"{place}, {row.setting.key}"), "file", place)
    return found


def _settle_model(sources: Mapping[Origin, dict[str, Given]]) -> None:
    """Take out of each source what belongs to a model that a stronger source replaced."""
    stronger: str | None = None
    for origin in _STRONGEST_FIRST:
        source = sources[origin]
        own = source["model"].value if "model" in source else None
        if stronger is not None and own is not None and own != stronger:
            for name in [name for name in source if SETTINGS[name].pairwise]:
                _LOG.info("%s is passed over: it belongs to %s, not to %s", source.pop(name).place, own, stronger)
        stronger = stronger or own


def _shown(value: object) -> str:
    """A scalar as typed, cut short; of anything else only what it is: it may be endless."""
    if isinstance(value, str | bool | float) or (isinstance(value, int) and value.bit_length() < 256):
        text = repr(value)
        return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return "a list or mapping" if isinstance(value, list | dict | set) else f"a value of type {type(value).__name__}"
