"""`settings.yaml`: sections of keys, read without trusting it, and every key that means nothing is named."""

import difflib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.errors import StorageError, UsageError
from dspark.hub import shelves
from dspark.settings.table import SECTIONS, SETTINGS, Setting

NAME = "settings.yaml"
MOST_BYTES = 64 * 1024
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A value as it stands in the file, not yet checked against its kind."""

    setting: Setting
    value: object
    line: int


def path() -> Path:
    """Where the file is looked for; `StorageError` where the home folder is not known."""
    return shelves.home() / NAME


def read(file: Path) -> Mapping[str, Entry]:
    """The settings that `file` gives, by name; none where there is no file. What means nothing is logged as a warning.

    Raises:
        StorageError: it cannot be read.
        UsageError: it is too large, no YAML, or no sections of keys.
    """
    content = _content(file)
    if content is None:
        return {}
    where = shelves.short(file)
    found: dict[str, Entry] = {}
    for section, key, value, line in _rows(content, where):
        setting = SETTINGS.get(key)
        if setting is None or setting.section != section:
            _LOG.warning("%s line %d: %s", where, line, _stray(section, key))
        elif "file" not in setting.sources:
            _LOG.warning("%s line %d: %s is not taken from a file: %s", where, line, setting.key, _instead(setting))
        elif key in found:
            first = found[key].line
            raise UsageError(f"{where} line {line}: {setting.key} stands in line {first} already: leave one of them")
        else:
            found[key] = Entry(setting, value, line)
    return found


def nearest(word: str, words: list[str]) -> str | None:
    """The one of `words` that was probably meant."""
    return next(iter(difflib.get_close_matches(word, words, n=1)), None)


def _content(file: Path) -> bytes | None:
    try:
        if not file.exists():
            return None
        if not file.is_file():
            raise UsageError(f"{shelves.short(file)} is no file: settings are YAML in a file of that name")
        with file.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise StorageError(f"{shelves.short(file)} cannot be read ({error.strerror}): check its permissions") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"{shelves.short(file)} is larger than {MOST_BYTES // 1024} KiB: settings take a few lines")
    return content


def _rows(content: bytes, where: str) -> Iterator[tuple[str, str, object, int]]:
    """Section, key, value and line of everything that stands in a section."""
    for section, keys, line in _pairs(content, where):
        if section not in SECTIONS:
            _LOG.warning("%s line %d: %s", where, line, _stray_section(section))
            continue
        if keys is None:
            continue
        if not isinstance(keys, list):
            raise UsageError(f"{where} line {line}: {section} must hold keys, such as '  {_example(section)}'")
        for key, value, key_line in keys:
            yield section, key, value, key_line


def _pairs(content: bytes, where: str) -> list[tuple[str, Any, int]]:
    """The top of the document: a mapping becomes a list of (key, value, line), so that no repeated key gets lost."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def mapping(loader: Loader, node: yaml.MappingNode) -> list[tuple[str, Any, int]]:
        return [
            (
                key.value if isinstance(key, yaml.ScalarNode) else "?",
                loader.construct_object(value, deep=True),
                key.start_mark.line + 1,
            )
            for key, value in node.value
        ]

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    try:
        top = yaml.load(content, Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        raise UsageError(f"{where}{line} is no YAML that settings can have ({problem}): correct it") from error
    if top is None:
        return []
    if not isinstance(top, list) or not all(isinstance(pair, tuple) for pair in top):
        raise UsageError(f"{where} must hold sections ({', '.join(SECTIONS)}) with keys in them")
    return top


def _stray(section: str, key: str) -> str:
    known = SETTINGS.get(key)
    if known is not None:
        return f"{section} has no {key}, which belongs under {known.section}; it is passed over"
    near = nearest(key, [*SETTINGS])
    return f"{section} has no {key}; {_meant(SETTINGS[near].key if near else None)}"


def _stray_section(section: str) -> str:
    if section in SETTINGS:
        return f"{section} stands outside its section: write it under {SETTINGS[section].section}; it is passed over"
    near = nearest(section, [*SECTIONS])
    if near is None and (setting := nearest(section, [*SETTINGS])):
        near = SETTINGS[setting].key
    return f"there is no section {section}; {_meant(near)}"


def _meant(near: str | None) -> str:
    return (f"did you mean {near}? " if near else "") + "It is passed over (mlx-dspark --show-config lists all)"


def _instead(setting: Setting) -> str:
    return f"give {setting.flag} or set {setting.variable}"


def _example(section: str) -> str:
    return next(f"{setting.name}: ..." for setting in SETTINGS.values() if setting.section == section)
