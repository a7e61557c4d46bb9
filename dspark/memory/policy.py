"""When to give memory back, and what: a ladder that a pressure climbs step by step. Pure: no clock, no MLX.

Dropping a conversation costs its next turn a whole prompt, so a warning takes the cheapest step first and a further one
only where the pressure outlasts it. A step is taken at an edge or after a delay, never again and again; once memory
has been calm for a while the ladder starts anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from dspark.machine.ceilings import Ceiling
from dspark.machine.facts import PRESSURES, Pressure

Step = Literal["allocator", "rungs", "older", "all"]
# Buffers that the allocator keeps for later; snapshots inside kept prompts; all kept prompts but the newest; all.
LADDER: tuple[Step, ...] = ("allocator", "rungs", "older", "all")
_WARNED = LADDER.index("all")  # a warning stops before it

REARM_S = 15.0  # systems take seconds to notice what was given back
CALM_S = 30.0


@dataclass(frozen=True)
class Stand:
    """How far up the ladder the present pressure has come, when the last step was taken, since when it is calm."""

    taken: int = 0
    acted_s: float | None = None
    calm_since_s: float | None = None


def decide(stand: Stand, level: Pressure | None, now_s: float) -> tuple[Stand, tuple[Step, ...]]:
    """The steps to take at a reading of `level` (None: unknown, and then nothing is done), cheapest first."""
    if level is None:
        return replace(stand, calm_since_s=None), ()
    if level == "normal":
        since = now_s if stand.calm_since_s is None else stand.calm_since_s
        return (Stand() if now_s - since >= CALM_S else replace(stand, calm_since_s=since)), ()
    resting = stand.acted_s is not None and now_s - stand.acted_s < REARM_S
    if level == "critical":  # it does not wait for what a warning did, only for what it did itself
        idle, steps = resting and stand.taken == len(LADDER), LADDER
    else:
        idle, steps = resting or stand.taken >= _WARNED, LADDER[stand.taken : stand.taken + 1]
    if idle:
        return replace(stand, calm_since_s=None), ()
    return Stand(LADDER.index(steps[-1]) + 1, acted_s=now_s), steps


def level(pressure: Pressure | None, hard: Iterable[Ceiling]) -> Pressure | None:
    """The worse of what the system says and how near the hard ceilings are; None where neither says anything.

    A process that passes one may be killed without the system having reported any pressure.
    """
    found = [pressure] if pressure is not None else []
    for ceiling in hard:
        if ceiling.free_bytes < 2 * ceiling.reserve_bytes:
            found.append("critical" if ceiling.free_bytes < ceiling.reserve_bytes else "warning")
    return max(found, key=PRESSURES.index, default=None)
