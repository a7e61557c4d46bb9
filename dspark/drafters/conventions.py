"""Settling by trial what a packaging leaves open: how its taps are numbered, which slot predicts first, how heads turn.

No tensor's shape tells these readings apart, and the wrong one costs nothing but acceptance. So at first load the
drafter drafts over a fixed text, the target's own greedy answer to a fixed prompt, with each reading; the one that is
accepted most is kept, and remembered for this checkpoint.
"""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspark.drafters.along import drafts_along, greedy_answer, hidden_rows
from dspark.drafters.block import BlockDrafter
from dspark.drafters.config import DrafterConfig
from dspark.drafters.loading import Bits, Window, bind, check_target
from dspark.drafters.packaging import Checkpoint, read
from dspark.errors import PairingError
from dspark.hub.checkpoint import fingerprint
from dspark.hub.storage import in_place_of
from dspark.targets.target import Target

# Code is easier to foresee than prose, so right and wrong readings lie further apart on it.
_PROMPT = "Write a Python function that checks whether a number is prime."
_TEXT_TOKENS = 64
# Accepted tokens a draft below which a drafter is more likely another model's: a trained head gives many times more.
_FLOOR = 0.1
# Standard errors by which another reading must be accepted more than the likelier one.
_CLEARLY = 2.0
# Remembered of a drafter with nothing to try out that is accepted.
SOUND = "accepted"


@dataclass(frozen=True)
class Reading:
    """One way to read a checkpoint: its canonical config, and what it assumes, in words."""

    name: str
    config: DrafterConfig


@dataclass(frozen=True)
class Opened:
    """A drafter, and what had to be found out about it, in a sentence for the user (None: nothing)."""

    drafter: BlockDrafter
    note: str | None


def open_drafter(
    path: Path, target: Target, *, bits: Bits = "auto", window: Window = "auto", memory: Path | None = None
) -> Opened:
    """Load the drafter at `path`, trying out whatever its packaging leaves open, and whether it is accepted at all.

    `memory` is a JSON file of earlier results, by checkpoint; it is made if need be, and a file that cannot be read or
    written only costs the trial again.

    Raises:
        As `load_drafter`.
    """
    checkpoint = read(path)
    possible = [reading for reading in readings(checkpoint.config) if _fits(reading.config, target)]
    key = f"{fingerprint(path)} for {hashlib.sha256(json.dumps(target.config, sort_keys=True).encode()).hexdigest()}"
    known = _recall(memory).get(key)
    if len(possible) < 2:
        drafter = bind(checkpoint, target, bits=bits, window=window)
        return Opened(drafter, None if known == SOUND else _smoke(drafter, target, memory, key))
    remembered = next((reading for reading in possible if reading.name == known), None)
    if remembered is not None:
        drafter = bind(checkpoint, target, bits=bits, window=window, reading=remembered.config)
        return Opened(drafter, f"the drafter is read with {remembered.name}, as tried out before")
    return _settle(checkpoint, target, possible, bits, window, memory, key)


def _smoke(drafter: BlockDrafter, target: Target, memory: Path | None, key: str) -> str | None:
    """Nothing is open; what remains is to see that the target accepts anything. Shapes alone do not make a pair."""
    prompt = target.encode_chat(_PROMPT)
    counts = _accepted(drafter, target, prompt, greedy_answer(target, prompt, _TEXT_TOKENS))
    mean = sum(counts) / max(len(counts), 1)
    if counts and mean < _FLOOR:
        return (
            f"the drafter is accepted next to never ({mean:.2f} tokens a draft): it probably belongs to another model"
        )
    _remember(memory, key, SOUND)
    return None


def readings(config: DrafterConfig) -> list[Reading]:
    """Every combination of the conventions that `config` leaves open, its own first."""
    found = [Reading("", config)]
    for convention in config.open:
        alternatives = {"taps": _taps, "layout": _layouts, "rope": _pairings}[convention]
        found = [
            Reading(f"{before.name} and {after.name}" if before.name else after.name, after.config)
            for before in found
            for after in alternatives(before.config)
        ]
    return found


def _taps(config: DrafterConfig) -> list[Reading]:
    raised = replace(config, taps=tuple(tap + 1 for tap in config.taps))
    return [Reading("taps numbered from 1", config), Reading("taps numbered from 0", raised)]


def _layouts(config: DrafterConfig) -> list[Reading]:
    slots = config.rows
    temperatures = config.confidence.temperatures if config.confidence else None
    both = [
        Reading("the anchor's slot predicting", replace(config, layout="next", block=slots)),
        Reading("the anchor's slot unused", replace(config, layout="same", block=slots - 1)),
    ]
    both.sort(key=lambda reading: reading.config.layout != config.layout)
    # Calibrated confidences count the proposals.
    return [one for one in both if one.config.block >= 1 and len(temperatures or ()) in (0, one.config.block)]


def _pairings(config: DrafterConfig) -> list[Reading]:
    def named(traditional: bool) -> Reading:
        name = "rotations that pair neighbours" if traditional else "rotations that pair halves"
        return Reading(name, replace(config, rope=replace(config.rope, traditional=traditional)))

    return [named(config.rope.traditional), named(not config.rope.traditional)]


def _fits(config: DrafterConfig, target: Target) -> bool:
    try:
        check_target(config, target)
    except PairingError:
        return False
    return True


def _settle(
    checkpoint: Checkpoint,
    target: Target,
    possible: list[Reading],
    bits: Bits,
    window: Window,
    memory: Path | None,
    key: str,
) -> Opened:
    prompt = target.encode_chat(_PROMPT)
    text = greedy_answer(target, prompt, _TEXT_TOKENS)
    drafters = [bind(checkpoint, target, bits=bits, window=window, reading=reading.config) for reading in possible]
    accepted = [_accepted(drafter, target, prompt, text) for drafter in drafters]
    means = [sum(counts) / max(len(counts), 1) for counts in accepted]
    figures = ", ".join(f"{mean:.2f} with {reading.name}" for mean, reading in zip(means, possible, strict=True))
    if max(means) < _FLOOR:
        return Opened(
            drafters[0],
            f"the drafter is accepted next to never however it is read ({figures}; tokens a draft): "
            "it probably belongs to another model",
        )
    best = preferred(accepted)
    _remember(memory, key, possible[best].name)
    return Opened(
        drafters[best], f"the drafter is read with {possible[best].name}, by trial ({figures}; tokens a draft)"
    )


def _accepted(drafter: BlockDrafter, target: Target, prompt: list[int], answer: list[int]) -> list[int]:
    rows = hidden_rows(target, drafter.taps, [*prompt, *answer[:-1]])
    return [tried.accepted for tried in drafts_along(drafter, rows, prompt, answer)]


def preferred(accepted: list[list[int]]) -> int:
    """Index of the reading to keep, from the tokens accepted at the same anchors with each, the likelier reading first.

    Another one must be accepted clearly more, since a short text decides.
    """
    best, best_mean = 0, 0.0
    for index, counts in enumerate(accepted[1:], start=1):
        gains = [other - first for other, first in zip(counts, accepted[0], strict=True)]
        mean = sum(gains) / max(len(gains), 1)
        variance = sum((gain - mean) ** 2 for gain in gains) / max(len(gains) - 1, 1)
        if mean > _CLEARLY * math.sqrt(variance / max(len(gains), 1)) and mean > best_mean:
            best, best_mean = index, mean
    return best


def _recall(memory: Path | None) -> dict[str, Any]:
    try:
        known = json.loads(memory.read_text(encoding="utf-8")) if memory is not None else {}
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(memory: Path | None, key: str, name: str) -> None:
    if memory is None:
        return
    known = {**_recall(memory), key: name}
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        with in_place_of(memory) as file:
            file.write(json.dumps(known, indent=1, sort_keys=True).encode())
    except OSError:
        return  # the trial is made again next time
