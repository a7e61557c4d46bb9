"""What a setting may hold. A kind reads a value out of a flag or variable (text) or out of YAML (already typed).

One reader for all three, so that no source takes what another refuses. Booleans are no numbers, numbers no text.
"""

import math
import re
from typing import Literal, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)

AUTO: Literal["auto"] = "auto"
_WHOLE = re.compile("[+-]?[0-9]{1,18}", re.ASCII)
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


class Kind(Protocol[T_co]):
    """`wanted` ends the sentence "give ..."; `metavar` stands in for the value in help texts."""

    @property
    def wanted(self) -> str: ...

    @property
    def metavar(self) -> str: ...

    def read(self, value: object) -> T_co:
        """The value. Raises ValueError where it is none of this kind."""


class Text:
    """Any text but an empty one."""

    def __init__(self, metavar: str = "TEXT", wanted: str = "a text that is not empty") -> None:
        self.metavar = metavar
        self.wanted = wanted

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ValueError
        return value


class Choice:
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self.metavar = "NAME"
        self.wanted = _listed(words)

    def read(self, value: object) -> str:
        if value not in self._words:
            raise ValueError
        return str(value)


class Whole:
    """A whole number from `low` to `high`, or one of `among`."""

    def __init__(self, low: int = 0, high: int | None = None, *, among: tuple[int, ...] = ()) -> None:
        self._low, self._high, self._among = low, high, among
        self.metavar = "N"
        bound = f"from {low} up" if high is None else f"from {low} to {high}"
        self.wanted = _listed([str(one) for one in among]) if among else f"a whole number {bound}"

    def read(self, value: object) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError
        if (value not in self._among) if self._among else (value < self._low):
            raise ValueError
        if self._high is not None and value > self._high:
            raise ValueError
        return value


class WholeOrAuto:
    """A whole number, or the word `auto`."""

    def __init__(self, number: Whole) -> None:
        self._number = number
        self.metavar = "N"
        self.wanted = f"{number.wanted}, or auto"

    def read(self, value: object) -> int | Literal["auto"]:
        return AUTO if value == AUTO else self._number.read(value)


class Number:
    """A finite number from `low` to `high`, `low` itself left out where `above` is set."""

    def __init__(self, low: float, high: float, *, above: bool = False) -> None:
        self._low, self._high, self._above = low, high, above
        self.metavar = "X"
        self.wanted = f"a number above {low:g}, up to {high:g}" if above else f"a number from {low:g} to {high:g}"

    def read(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        try:
            number = float(value)
        except OverflowError as error:  # a whole number that no float holds
            raise ValueError from error
        if not math.isfinite(number) or not self._low <= number <= self._high or (self._above and number == self._low):
            raise ValueError
        return number


class Switch:
    """True or false; as text also yes, no, on, off, 1 and 0."""

    metavar = ""
    wanted = "true or false"

    def read(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        word = value.strip().lower() if isinstance(value, str) else None
        if word not in _TRUE + _FALSE:
            raise ValueError
        return word in _TRUE


class Listed:
    """Several texts: a list in YAML, separated by commas elsewhere."""

    metavar = "A,B"
    wanted = "a list of texts"

    def read(self, value: object) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not all(isinstance(part, str) and part.strip() for part in parts):
            raise ValueError
        return tuple(part.strip() for part in parts)


class ApiKey:
    """At least 4 printable ASCII characters without white space. What is wrong is said without showing the key."""

    metavar = "KEY"
    wanted = "at least 4 printable ASCII characters without white space"

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("an API key is a text: put it in quotes")
        if any(char.isspace() for char in value):
            raise ValueError("the API key contains white space: leave it out")
        if not value.isascii() or not value.isprintable():
            raise ValueError("the API key contains characters other than printable ASCII: choose another")
        if len(value) < 4:
            raise ValueError("the API key is too short: give at least 4 characters")
        return value


def _listed(words: tuple[str, ...] | list[str]) -> str:
    return ", ".join(words[:-1]) + f" or {words[-1]}"
