"""An arm of a race: a label and the way to speculate that it stands for.

An arm is written `mode` or `mode:key=value,key=value`, e.g. `dspark:cap=4,lookup=off,confidence=0.3`.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from dspark.decoding.request import MODES, Cap, Mode, Speculation, SpeculationOptions
from dspark.errors import UsageError
from dspark.racing.decoder import Decoder

BASELINE: Mode = "baseline"

SETTINGS: dict[Mode, tuple[str, ...]] = {
    "auto": ("cap", "lookup", "confidence"),
    "baseline": (),
    "lookup": ("cap",),
    "dspark": ("cap", "lookup", "confidence"),
    "dflash": ("cap", "lookup"),
}


@dataclass(frozen=True)
class Arm:
    """One way to decode; `label` is what the caller typed, and unique within a race."""

    label: str
    options: SpeculationOptions


@dataclass(frozen=True)
class Entrant:
    """An arm with its settings resolved against the loaded pair."""

    arm: Arm
    speculation: Speculation

    @property
    def label(self) -> str:
        return self.arm.label


def parse(text: str) -> Arm:
    """Read one arm. Raises UsageError that names what is wrong and what is possible."""
    label = " ".join(text.split())  # a tab or a newline among the settings would break a table
    name, colon, rest = label.partition(":")
    mode = _mode(label, name)
    if not colon:
        return Arm(label, SpeculationOptions(mode))
    settings: dict[str, str] = {}
    for item in rest.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not value:
            raise UsageError(f"--arm {label}: {item.strip() or 'nothing'!r} is not a setting; {_possible(mode)}")
        if key not in SETTINGS[mode]:
            raise UsageError(f"--arm {label}: {mode} has no setting {key!r}; {_possible(mode)}")
        if key in settings:
            raise UsageError(f"--arm {label}: {key} is given twice; leave one of them")
        settings[key] = value
    return Arm(
        label,
        SpeculationOptions(
            mode,
            cap=_cap(label, settings["cap"]) if "cap" in settings else None,
            lookup=_switch(label, settings["lookup"]) if "lookup" in settings else None,
            confidence=_confidence(label, settings["confidence"]) if "confidence" in settings else None,
        ),
    )


def parse_all(texts: Iterable[str]) -> list[Arm]:
    """Read the arms of one race, plain decoding first: it is added where nobody named it.

    The same arm named twice runs twice (a measure of the noise), the second as `label#2`.
    """
    arms: list[Arm] = []
    seen: dict[str, int] = {}
    for arm in map(parse, texts):
        seen[arm.label] = count = seen.get(arm.label, 0) + 1
        arms.append(arm if count == 1 else Arm(f"{arm.label}#{count}", arm.options))
    plain = next((arm for arm in arms if arm.options.mode == BASELINE), Arm(BASELINE, SpeculationOptions(BASELINE)))
    return [plain, *(arm for arm in arms if arm is not plain)]


def default_arms(modes: Iterable[Mode], decoder: Decoder) -> list[Arm]:
    """Plain decoding against every mode of the pair, and `auto` where it comes out as none of those."""
    arms = [Arm(mode, SpeculationOptions(mode)) for mode in modes if mode not in (BASELINE, "auto")]
    arms.insert(0, Arm(BASELINE, SpeculationOptions(BASELINE)))
    auto = Arm("auto", SpeculationOptions("auto"))
    known = [decoder.resolve(arm.options) for arm in arms]
    return arms if decoder.resolve(auto.options) in known else [*arms, auto]


def enter(arms: Iterable[Arm], decoder: Decoder) -> list[Entrant]:
    """Resolve arms against the loaded pair. Raises UsageError where the pair cannot do what an arm asks."""
    entrants = []
    for arm in arms:
        try:
            entrants.append(Entrant(arm, decoder.resolve(arm.options)))
        except UsageError as error:
            raise UsageError(f"--arm {arm.label}: {error}") from error
    return entrants


def alike(entrants: Iterable[Entrant]) -> list[list[str]]:
    """Labels of arms that resolved to the same settings, in groups of two and more."""
    groups: dict[Speculation, list[str]] = {}
    for entrant in entrants:
        groups.setdefault(entrant.speculation, []).append(entrant.label)
    return [labels for labels in groups.values() if len(labels) > 1]


def _mode(label: str, name: str) -> Mode:
    for mode in MODES:
        if name.strip() == mode:
            return mode
    raise UsageError(f"--arm {label or repr(label)}: no mode {name.strip()!r}; take one of {', '.join(MODES)}")


def _cap(label: str, value: str) -> Cap:
    if value == "auto":
        return "auto"
    if re.fullmatch("0*[1-9][0-9]{0,5}", value, re.ASCII):
        return int(value)
    raise UsageError(f"--arm {label}: cap={value} must be a whole number from 1 up, or auto (no drafting: {BASELINE})")


def _switch(label: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise UsageError(f"--arm {label}: lookup={value} must be on or off")
    return value == "on"


def _confidence(label: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise UsageError(f"--arm {label}: confidence={value} must be a number from 0 to 1")
    return number


def _possible(mode: Mode) -> str:
    if not SETTINGS[mode]:
        return f"{mode} takes no settings, write just {mode}"
    examples = {"cap": "cap=4", "lookup": "lookup=off", "confidence": "confidence=0.3"}
    return f"{mode} takes " + ", ".join(examples[key] for key in SETTINGS[mode])
