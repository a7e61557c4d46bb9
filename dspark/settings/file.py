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
        UsageError: it is too large, no YAML, gives a key twice, or holds no sections of keys.
    """
    where = shelves.short(file)
    found: dict[str, Entry] = {}
    for section, key, value, line in _rows(_document(file, where), where):
        setting = SETTINGS.get(key)
        if setting is None or setting.section != section:
            _LOG.warning("%s line %d: %s", where, line, _stray(section, key))
        elif "file" not in setting.sources:
            _LOG.warning("%s line %d: %s is not taken from a file: %s", where, line, setting.key, _instead(setting))
        else:
            found[key] = Entry(setting, value, line)
    return found


def nearest(word: str, words: list[str]) -> str | None:
    """The one of `words` that was probably meant."""
    return next(iter(difflib.get_close_matches(word, words, n=1)), None)


def _document(file: Path, where: str) -> Any:
    from dspark import yamlfile

    try:
        return yamlfile.read(file, MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"{where} cannot be read ({error.strerror}): check what it is and its permissions"
        ) from error
    except yamlfile.Malformed as error:
        line = "" if error.line is None else f" line {error.line}"
        raise UsageError(f"{where}{line}: {error.problem}; correct it") from error


def _rows(document: Any, where: str) -> Iterator[tuple[str, str, object, int]]:
    """Section, key, value and line of everything that stands in a section."""
    from dspark.yamlfile import Lined

    if document is None:
        return
    if not isinstance(document, Lined):
        raise UsageError(f"{where} must hold sections ({', '.join(SECTIONS)}) with keys in them")
    for section, keys in document.items():
        line = document.lines[section]
        if section not in SECTIONS:
            _LOG.warning("%s line %d: %s", where, line, _stray_section(str(section)))
        elif isinstance(keys, Lined):
            yield from ((section, str(key), value, keys.lines[key]) for key, value in keys.items())
        elif keys is not None:
            raise UsageError(f"{where} line {line}: {section} must hold keys, such as '  {_example(section)}'")


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
