"""The prefix cache: conversations kept with their caches, one exclusive check-out a generation.

A prompt is compared with every conversation kept, token by token. (mlx-lm's prompt trie does the same for one purpose
more, many entries, and pays with a dictionary a token; here there are a few, and comparing two lists is fast.) Where it
goes on with a conversation, that one is checked out itself; where it shares only a beginning, such as a system prompt,
the beginning is forked and the other conversation stays. All methods but `report` belong to the thread of MLX.
"""

import logging
from collections.abc import Sequence
from itertools import count
from typing import Literal

from dspark.drafters.drafter import DrafterContext
from dspark.errors import RollbackError
from dspark.prefix.disk import DiskTier
from dspark.prefix.lease import Lease
from dspark.prefix.options import PrefixOptions
from dspark.prefix.report import Mode, Outcome, PrefixReport, Visit
from dspark.prefix.sizes import default_limit_bytes
from dspark.prefix.slot import SLACK_TOKENS, Slot
from dspark.targets.caches import Reason, TargetCache

# Conversations shorter than this are soon read again: they go before any longer one.
TINY_TOKENS = 256
# A beginning shared with another conversation is worth a fork from here on.
_LEAST_SHARED_TOKENS = 16
# The disk is asked only for so many tokens more than memory has.
_LEAST_READ_TOKENS = 64
_LOG = logging.getLogger(__name__)


class PrefixCache:
    """The conversations of one loaded pair."""

    def __init__(self, options: PrefixOptions, *, mode: Mode, reason: str | None = None, disk: DiskTier | None = None):
        self._mode: Mode = mode if options.enabled else "off"
        self._reason = reason if options.enabled else "switched off"
        self._options = options
        self._limit_bytes = default_limit_bytes() if options.limit_bytes is None else options.limit_bytes
        self._disk = disk
        self._slots: list[Slot] = []
        self._clock = count(1)
        self._outcomes: dict[Outcome, int] = {"hit": 0, "partial": 0, "miss": 0}
        self._reused = self._read = self._evicted = self._dropped = 0
        self._last: Visit | None = None

    @property
    def enabled(self) -> bool:
        """Whether anything is kept at all."""
        return self._mode != "off"

    @property
    def wants_boundaries(self) -> bool:
        """Whether knowing where a prompt will be rendered the same next time (`Request.boundaries`) is of use."""
        return self._mode == "checkpoint"

    def check_out(
        self, prompt: list[int], cache: TargetCache, *, drafted: bool, budget: int, boundaries: Sequence[int] = ()
    ) -> Lease:
        """What is known of `prompt`, for one generation alone; `cache` is an empty one of the same target.

        `drafted` asks for a drafter's context as well, `budget` is how many tokens may follow the prompt.
        """
        slot, shared = self._take(prompt, drafted=drafted)
        cached = slot.cache.length if slot is not None else 0
        known = sorted(one for one in set(boundaries) if 0 < one < len(prompt))
        lease = Lease(stable=known[-1] if known else len(prompt) - 1)
        if cache.forgets(len(prompt) + budget):
            cuts = self._cuts(len(prompt), known, shared if shared - cached > SLACK_TOKENS else None)
            lease = Lease(stable=lease.stable, cuts=cuts, rung_tokens=self._options.rung_tokens)
        if slot is None:
            return lease
        return Lease(
            cache=slot.cache,
            context=slot.context if drafted else None,
            aside=None if drafted else slot.context,
            cuts=lease.cuts,
            rung_tokens=lease.rung_tokens,
            stable=lease.stable,
            path=slot.path,
            written=slot.written,
        )

    def give_back(self, lease: Lease, tokens: list[int], cache: TargetCache, context: DrafterContext | None) -> None:
        """Keep a conversation: `cache` holds exactly `tokens`, `context` (or the lease's other one) no others."""
        if not tokens or not self.enabled:
            return
        if context is None and lease.aside is not None:
            context = lease.aside
            context.truncate(cache.length)
        slot = Slot(tokens, cache, context, lease.stable, lease.path, lease.written)
        slot.used = next(self._clock)
        slot.thin()
        for other in [other for other in self._slots if slot.replaces(other)]:
            slot.path = slot.path or other.path
            self._slots.remove(other)
        self._slots.append(slot)
        while len(self._slots) > self._options.slots:
            self._evict()
        self._shrink(self._limit_bytes, spill=True)

    def drop(self) -> None:
        """The generation failed: what it held may be wrong, and is gone."""
        self._dropped += 1

    def held(self, prompt: list[int], *, drafted: bool) -> int:
        """How many tokens of `prompt` memory would spare reading now."""
        return max((slot.usable(prompt, drafted=drafted)[1] for slot in self._slots), default=0)

    def shed(self, what: int | Literal["rungs", "older", "all"], /) -> int:
        """Give back memory, the least useful first: checkpoints, then the oldest conversations.

        `what` is how many bytes, or all checkpoints (rungs), all conversations but the newest (older), or all. Nothing
        is written to disk for it, which would take memory. Returns the bytes that came back; a generation under way
        keeps what it holds.
        """
        before = self.nbytes
        if what == "rungs":
            for slot in self._slots:
                slot.strip()
        elif what == "older":
            newest = max((slot.used for slot in self._slots), default=0)
            self._evicted += len(self._slots) - bool(self._slots)
            self._slots = [slot for slot in self._slots if slot.used == newest]
        else:
            self._shrink(0 if what == "all" else max(before - what, 0), spill=False)
        return before - self.nbytes

    def settle(self) -> bool:
        """Write one changed conversation to disk, for when nothing else is to be done; False when there is none."""
        if self._disk is None or self._disk.busy:
            return False
        for slot in sorted(self._slots, key=lambda slot: slot.used, reverse=True):
            if slot.unwritten >= TINY_TOKENS:  # a file is written as a whole, so not for every few words
                self._spill(slot)
                return True
        return False

    def close(self) -> None:
        """Write what is not written, wait for it, and let go of everything."""
        if self._disk is not None:
            for slot in self._slots:
                self._disk.wait()
                self._spill(slot)
            self._disk.close()
        self._slots = []

    @property
    def nbytes(self) -> int:
        """Bytes of all conversations kept. What two share is counted for each."""
        return sum(slot.nbytes for slot in tuple(self._slots))

    def report(self) -> PrefixReport:
        """Figures as they are now; from any thread."""
        slots = tuple(self._slots)
        return PrefixReport(
            mode=self._mode,
            reason=self._reason,
            slots=len(slots),
            slot_limit=self._options.slots,
            bytes=sum(slot.nbytes for slot in slots),
            limit_bytes=self._limit_bytes,
            tokens=sum(len(slot.tokens) for slot in slots),
            checkpoints=sum(slot.checkpoints for slot in slots),
            hits=self._outcomes["hit"],
            partials=self._outcomes["partial"],
            misses=self._outcomes["miss"],
            reused_tokens=self._reused,
            read_tokens=self._read,
            evicted=self._evicted,
            dropped=self._dropped,
            last=self._last,
            disk=self._disk.report() if self._disk is not None else None,
        )

    def _take(self, prompt: list[int], *, drafted: bool) -> tuple[Slot | None, int]:
        """The conversation that spares the most reading, cut to what is shared; and how much the nearest one shares."""
        best, agreed, usable, nearest = None, 0, 0, 0
        for slot in self._slots:
            shared, here = slot.usable(prompt, drafted=drafted)
            nearest = max(nearest, shared)
            if here > usable or (best is not None and here == usable and slot.used > best.used):
                best, agreed, usable = slot, shared, here
        if self._disk is not None:
            read = self._disk.take(prompt, usable + _LEAST_READ_TOKENS, drafted=drafted)
            if read is not None:
                best = read
                agreed, usable = read.usable(prompt, drafted=drafted)
                nearest = max(nearest, agreed)
        goes_on = best is not None and best.continues(agreed)
        if best is not None and not goes_on and usable < _LEAST_SHARED_TOKENS:
            best, usable = None, 0
        if best is not None:
            best = self._hand_out(best, usable, goes_on=goes_on)
        self._count(best, len(prompt), nearest, goes_on=goes_on)
        return best, nearest

    def _hand_out(self, slot: Slot, length: int, *, goes_on: bool) -> Slot | None:
        """The first `length` tokens of `slot`: itself where its conversation goes on, otherwise a fork.

        None where its cache turns out not to give them back: then it is gone, and the prompt is read anew.
        """
        try:
            return self._separate(slot, length, goes_on=goes_on)
        except RollbackError as error:
            _LOG.warning("a conversation kept is not used: %s", error)
            self._slots = [other for other in self._slots if other is not slot]
            self._dropped += 1
            return None

    def _separate(self, slot: Slot, length: int, *, goes_on: bool) -> Slot:
        if slot not in self._slots:  # fresh from disk, where the rest of another conversation stays
            slot.path = slot.path if goes_on else None
            return slot.cut(length)
        if goes_on or not slot.shareable:
            self._slots.remove(slot)
            return slot.cut(length)
        slot.used = next(self._clock)
        return slot.fork(length)

    def _count(self, slot: Slot | None, prompt_tokens: int, shared: int, *, goes_on: bool) -> None:
        cached = slot.cache.length if slot is not None else 0
        outcome: Outcome = "miss" if not cached else "hit" if goes_on and shared - cached <= SLACK_TOKENS else "partial"
        self._outcomes[outcome] += 1
        self._reused += cached
        self._read += prompt_tokens - cached
        self._last = Visit(outcome, prompt_tokens, shared, cached)

    def _cuts(self, total: int, boundaries: Sequence[int], parted: int | None) -> dict[int, Reason]:
        last = total - 1
        cuts: dict[int, Reason] = {}
        if not boundaries or last - boundaries[-1] > SLACK_TOKENS:
            cuts[last] = "stable"  # for the same prompt once more
        if self._options.rung_tokens:
            cuts |= dict.fromkeys(range(self._options.rung_tokens, last, self._options.rung_tokens), "rung")
        cuts |= dict.fromkeys(boundaries, "stable")
        if parted is not None:
            cuts[min(parted, last)] = "anchor"
        return cuts

    def _evict(self, *, spill: bool = True) -> None:
        slot = min(self._slots, key=lambda slot: (len(slot.tokens) >= TINY_TOKENS, slot.used))
        if spill:
            self._spill(slot)
        self._slots.remove(slot)
        self._evicted += 1

    def _shrink(self, limit_bytes: int, *, spill: bool) -> None:
        for slot in sorted(self._slots, key=lambda slot: slot.used):
            if self.nbytes <= limit_bytes:
                return
            slot.strip()
        while self._slots and self.nbytes > limit_bytes:
            self._evict(spill=spill)

    def _spill(self, slot: Slot) -> None:
        if self._disk is None or not slot.unwritten or len(slot.tokens) < TINY_TOKENS:
            return
        if (path := self._disk.write(slot)) is not None:
            slot.path, slot.written = path, len(slot.tokens)
