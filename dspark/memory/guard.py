"""The memory guard: asks before a prompt is read, and gives memory back between rounds. It never touches wired limits.

Everything runs on the generation thread. Readings are taken anew for each decision; where the system tells nothing, the
guard says `unknown` and does nothing.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import mlx.core as mx

from dspark.errors import InsufficientMemory
from dspark.machine import heap, platform
from dspark.machine.ceilings import Ceiling, binding, ceilings, hard_ceilings
from dspark.machine.facts import Pressure, Strain
from dspark.machine.platform import Platform
from dspark.memory.estimate import LEAST_CHUNK_TOKENS, PrefillCost
from dspark.memory.policy import LADDER, Stand, Step, decide, level

State = Literal["on", "off", "unknown"]
POLL_S = 2.0
# A prompt with no more new tokens takes less than the load's own probes did.
SMALL_TOKENS = 256
# As much of an answer is reserved for; what is longer grows slowly enough to be noticed between rounds.
ANSWER_TOKENS = 1024

log = logging.getLogger(__name__)


class Holder(Protocol):
    """Keeps what can be rebuilt: a prefix cache. `nbytes` is all that it could give back."""

    @property
    def nbytes(self) -> int: ...

    def shed(self, what: Literal["rungs", "older", "all"], /) -> int:
        """Give back snapshots inside prompts, all prompts but the newest, or all; the bytes that came back."""


@dataclass(frozen=True)
class GuardReport:
    """What the guard sees and has done since it was made. `binds` names the ceiling with the least room."""

    state: State
    pressure: Pressure | None
    swap_used_bytes: int | None
    ceilings: tuple[Ceiling, ...]
    binds: str | None
    room_bytes: int | None
    shed: dict[Step, int]
    shed_bytes: int
    refused: int
    shortened: int


@dataclass(frozen=True)
class MemoryReport:
    """Bytes that MLX holds for arrays, keeps for later, and held at most since someone last asked it to forget."""

    active_bytes: int
    cache_bytes: int
    peak_bytes: int
    guard: GuardReport

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


class MemoryGuard:
    """`enabled` switches it off and on. `holder` is asked to give back what it keeps; without one only MLX is."""

    def __init__(self, here: Platform | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.enabled = True
        self.holder: Holder | None = None
        self._here = here or platform.current()
        self._clock = clock
        self._stand = Stand()
        self._looked_s: float | None = None
        self._shed: dict[Step, int] = dict.fromkeys(LADDER, 0)
        self._shed_bytes = self._refused = self._shortened = 0

    def strain(self) -> Strain:
        """Pressure and swap now."""
        return self._here.strain()

    def ceilings(self) -> tuple[Ceiling, ...]:
        """What bounds this process now."""
        if mx.default_device().type != mx.DeviceType.gpu:
            return ceilings(self._here)
        size = mx.device_info().get("max_recommended_working_set_size")
        return ceilings(self._here, size if isinstance(size, int) else None, mx.get_active_memory())

    def admit(
        self,
        cost: Callable[[], PrefillCost],
        tokens: int,
        chunk: int,
        *,
        cached: Callable[[], int] = lambda: 0,
        answer: int = 0,
    ) -> int:
        """In which chunks to read a prompt of `tokens`: `chunk`, or shorter ones.

        `cached` tells how many of them are held already, `answer` how long the answer may be. Shorter chunks are tried
        first, since they cost milliseconds; then what is kept is given back, cheapest first, where that can help.

        Raises:
            InsufficientMemory: it does not fit.
        """
        if not self.enabled or tokens - cached() <= SMALL_TOKENS:
            return chunk
        estimate, ahead = cost(), min(answer, ANSWER_TOKENS)
        steps: list[Step] = list(LADDER)
        while (ceiling := binding(self.ceilings())) is not None:
            held = cached()  # giving back may take it
            fitting = estimate.chunk(ceiling.room_bytes, tokens, chunk, cached=held, ahead=ahead)
            if fitting is not None:
                self._shortened += fitting < chunk
                return fitting
            most = ceiling.room_bytes + (self.holder.nbytes if self.holder is not None else 0)
            hopeless = not steps or estimate.chunk(most, tokens, chunk, cached=held, ahead=ahead) is None
            if hopeless and steps != list(LADDER):  # the allocator's own costs nothing
                self._refused += 1
                raise _refusal(estimate, ceiling, tokens, held, ahead)
            self._give_back(steps.pop(0))
        return chunk

    def border(self) -> None:
        """Between rounds: look at the pressure every other second, and give back what it calls for."""
        now = self._clock()
        if not self.enabled or (self._looked_s is not None and now - self._looked_s < POLL_S):
            return
        self._looked_s = now
        seen = level(self._here.strain().pressure, hard_ceilings(self._here))
        self._stand, steps = decide(self._stand, seen, now)
        for step in steps:
            freed = self._give_back(step)
            log.warning("memory pressure is %s: gave back %s (%.0f MB)", seen, step, freed / 1e6)

    def report(self) -> GuardReport:
        """Read now."""
        strain, found = self._here.strain(), self.ceilings()
        binds = binding(found)
        state: State = "on" if self.enabled else "off"
        if self.enabled and (strain.pressure is None or binds is None):
            state = "unknown"
        return GuardReport(
            state,
            strain.pressure,
            strain.swap_used_bytes,
            found,
            binds.binds if binds else None,
            binds.room_bytes if binds else None,
            dict(self._shed),
            self._shed_bytes,
            self._refused,
            self._shortened,
        )

    def _give_back(self, step: Step) -> int:
        if step == "allocator":
            freed = int(mx.get_cache_memory())
        else:
            freed = self.holder.shed(step) if self.holder is not None else 0
        mx.clear_cache()  # also what the holder let go is the allocator's to keep until then
        heap.trim()
        self._shed[step] += 1
        self._shed_bytes += freed
        return freed


def _refusal(estimate: PrefillCost, ceiling: Ceiling, tokens: int, cached: int, ahead: int) -> InsufficientMemory:
    need = estimate.needs(tokens, LEAST_CHUNK_TOKENS, cached=cached, ahead=ahead)
    fitting = estimate.longest(ceiling.room_bytes, tokens)
    remedies = [f"shorten it to {fitting} tokens"] if fitting else []
    remedies += [] if estimate.quantized else ["quantize the cache with --kv-bits 8"]
    return InsufficientMemory(
        f"reading this prompt of {tokens} tokens takes about {_amount(need)} more, and {_amount(ceiling.room_bytes)} "
        f"are left under {ceiling.binds} of {_amount(ceiling.limit_bytes)}: {', '.join([*remedies, ''])}"
        f"or {ceiling.remedy}"
    )


def _amount(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"
