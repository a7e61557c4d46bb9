"""Who decides, round by round, what to propose and how much of it to verify. Pure: no MLX, no clock.

At temperature 0 every choice made here is lossless; it only decides the speed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Literal, Protocol

from dspark.tuning.acceptance import DraftAcceptance, LookupAcceptance, Prior
from dspark.tuning.costs import CostModel
from dspark.tuning.drafting import Drafting, Lengths

Source = Literal["drafter", "lookup", "plain"]
# No round proposes more, whatever it could look up.
MAX_ROUND_TOKENS = 32
# A shorter match says too little about what follows.
MIN_MATCH_TOKENS = 2


# What becomes of the confidences of a draft: read before it is verified, read with the round's outcome, or never made.
Confidences = Literal["first", "after", "never"]


@dataclass(frozen=True)
class Plan:
    """What the next round proposes: at most `cap` tokens from `source`. Reading confidences first allows to trim."""

    source: Source
    cap: int
    confidences: Confidences = "never"


PLAIN = Plan("plain", 0)


@dataclass(frozen=True)
class Outcome:
    """What a round came to: `verified` proposals of a draft of `cap`, `accepted` of them.

    `context` is the length of the target's cache after it, `waited` tells that confidences were read first.
    """

    source: Source
    cap: int
    verified: int
    accepted: int
    match_length: int = 0
    confidences: tuple[float, ...] | None = None
    context: int = 0
    waited: bool = False


def confident_prefix(confidences: Sequence[float] | None, count: int, threshold: float) -> int:
    """How many of `count` proposals to keep: as long as the chance that all of them survive is at least `threshold`.

    That chance is the product of the confidences up to there; a threshold of 0 keeps all.
    """
    if confidences is None or threshold <= 0:
        return count
    survival = accumulate(confidences[:count], mul)
    return next((k for k, chance in enumerate(survival) if chance < threshold), count)


class Pilot(Protocol):
    """Plans rounds and learns from them."""

    def plan(self, match_length: int, match_tokens: int, room: int) -> Plan:
        """The next round, given the lookup match at hand and `room` for proposals."""

    def trim(self, confidences: Sequence[float] | None, count: int) -> int:
        """How many of `count` drafted proposals to verify, where their confidences were to be read first."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished round."""

    def plain_ahead(self, match_length: int) -> bool:
        """Whether the round after a plain one is to be plain whatever that one brings, so that it can start early.

        `match_length` is the newest match, which can grow by one at most.
        """


class PlainPilot:
    """Never proposes anything."""

    def plan(self, match_length: int, match_tokens: int, room: int) -> Plan:
        return PLAIN

    def trim(self, confidences: Sequence[float] | None, count: int) -> int:
        return 0

    def observe(self, outcome: Outcome) -> None:
        pass

    def plain_ahead(self, match_length: int) -> bool:
        return True


class FixedPilot:
    """Drafts up to a fixed cap, or looks up where the match is long; a confidence threshold cuts drafts short."""

    # With a drafter at hand a short match is the worse guess.
    HYBRID_MATCH = 5

    def __init__(self, cap: int, *, drafter: bool, lookup: bool, confidence: float = 0.0) -> None:
        self._cap = cap
        self._drafter = drafter
        self._lookup_from = (self.HYBRID_MATCH if drafter else 1) if lookup else None
        self._confidence = confidence

    def plan(self, match_length: int, match_tokens: int, room: int) -> Plan:
        cap = min(self._cap, room)
        if cap <= 0:
            return PLAIN
        if self._lookup_from is not None and match_tokens and match_length >= self._lookup_from:
            return Plan("lookup", min(cap, match_tokens))
        return Plan("drafter", cap, "first" if self._confidence > 0 else "never") if self._drafter else PLAIN

    def trim(self, confidences: Sequence[float] | None, count: int) -> int:
        return confident_prefix(confidences, count, self._confidence)

    def observe(self, outcome: Outcome) -> None:
        pass

    def plain_ahead(self, match_length: int) -> bool:
        return not self._drafter and (self._lookup_from is None or match_length + 1 < MIN_MATCH_TOKENS)


def pilot_for(
    cap: int | Literal["auto"],
    *,
    block: int,
    lookup: bool,
    confidence: float,
    costs: Callable[[], CostModel],
    prior: Prior = Prior(),
) -> Pilot:
    """The pilot of a setting: `cap` 0 is plain decoding, `block` 0 stands for no drafter.

    `costs` is asked for only where rounds are weighed.
    """
    if cap == 0 or not (block or lookup):
        return PlainPilot()
    if cap != "auto":
        return FixedPilot(cap, drafter=block > 0, lookup=lookup, confidence=confidence)
    return AutoPilot(
        costs(),
        max_cap=MAX_ROUND_TOKENS,
        block=block,
        lookup=lookup,
        confidence=confidence,
        prior=prior,
    )


class AutoPilot:
    """Weighs expected tokens against measured cost, in units of one plain step, and parks what does not pay.

    A round that settles t tokens at the cost of c plain steps gains t - c. Drafting goes on while its recent gain is
    positive; otherwise it rests, and is tried again. A draft is verified up to the length that maximizes expected
    tokens less cost, cost counted at the rate decoding currently reaches: up to its own where it is read first, to one
    that suits all where waiting for it costs more than trimming brings.
    """

    # How often a token makes a first match, and what share of its worth a match loses by coming one token late.
    _NEW_MATCH = 0.25
    _DELAY = 0.5
    # One outcome is a throw of dice; what the confidences promised says as much of the text, and counts for a part.
    _PROMISED = 0.25
    # Drafts are tried where they would pay if each chance were this power of itself: texts differ.
    _OPTIMISM = 0.7
    # How far the context may grow before costs are read off anew.
    _DEPTH_STEP_TOKENS = 256

    def __init__(
        self,
        costs: CostModel,
        *,
        max_cap: int,
        block: int,
        lookup: bool,
        confidence: float = 0.0,
        prior: Prior = Prior(),
    ) -> None:
        """`block` is the drafter's, 0 without one; `max_cap` bounds every round.

        A `confidence` threshold above 0 cuts drafts short before anything is weighed. `prior` is what recorded answers
        of this pair were accepted.
        """
        self._everywhere = costs
        self._costs = costs
        self._depth = 0
        self._max_cap = max_cap
        self._block = min(block, max_cap)
        self._lookup = lookup
        self._confidence = confidence
        self._drafts = DraftAcceptance(block, prior)
        self._matches = LookupAcceptance(prior)
        self._rate = 1.0
        self._drafting = Drafting()
        self._lengths = Lengths(self._whole(self._drafts.survival(None, self._block))) if self._block else None
        self._hopeful = self._hopes()

    def plan(self, match_length: int, match_tokens: int, room: int) -> Plan:
        room = min(room, self._max_cap)
        if room <= 0:
            return PLAIN
        lookup, lookup_gain = self._best_lookup(match_length, min(match_tokens, room))
        if not self._hopeful or self._drafting.resting or self._drafting.gain <= max(lookup_gain, 0.0):
            return lookup
        # A threshold is the user's wish, and only what was read can be held against it.
        length = self._lengths.next() if self._lengths and self._confidence == 0 else 0
        return Plan("drafter", min(length or self._block, room), "after" if length else "first")

    def _whole(self, survival: Sequence[float]) -> list[float]:
        """Expected gain of a draft that is verified whole, by its length."""
        return [
            tokens - self._rate * (self._steps(1 + cap, cap, waits=False) - 1.0)
            for cap, tokens in enumerate(accumulate(survival), start=1)
        ]

    def _hopes(self) -> bool:
        chances = (chance**self._OPTIMISM for chance in self._drafts.survival(None, self._block))
        return max(self._whole(list(chances)), default=0.0) > 0.0

    def _best_lookup(self, match_length: int, tokens: int) -> tuple[Plan, float]:
        if not self._lookup or tokens <= 0:
            return PLAIN, 0.0
        count, value = self._best_count(self._matches.survival(match_length, tokens), instead=1.0)
        return (Plan("lookup", count), value) if count else (PLAIN, 0.0)

    def _best_count(self, survival: Sequence[float], instead: float) -> tuple[int, float]:
        """The number of proposals to verify, and its expected gain at the current rate.

        `instead` is the cost of the round without proposals: a plain step fed ahead, or one that has to wait.
        """
        best, best_value, tokens = 0, 0.0, 0.0
        for count, chance in enumerate(survival, start=1):
            tokens += chance
            value = tokens - self._rate * (self._steps(1 + count) - instead)
            if value > best_value:
                best, best_value = count, value
        return best, best_value

    def _steps(self, width: int, cap: int = 0, *, waits: bool = True) -> float:
        return self._costs.round_ms(width, cap, waits=waits) / self._costs.plain_ms

    def trim(self, confidences: Sequence[float] | None, count: int) -> int:
        drafted, count = count, confident_prefix(confidences, count, self._confidence)
        survival = self._drafts.survival(confidences, count)
        best, gain = self._best_count(survival, instead=self._steps(1))
        if self._lengths and count == self._block:
            spent = self._rate * (self._steps(1, drafted, waits=confidences is not None) - 1.0)
            self._lengths.weigh(gain - spent, self._whole(survival))
        return best

    def observe(self, outcome: Outcome) -> None:
        if abs(outcome.context - self._depth) >= self._DEPTH_STEP_TOKENS:
            self._depth, self._costs = outcome.context, self._everywhere.at(outcome.context)
            self._hopeful = self._hopes()
        # Counted here and not when planning: rounds that were fed ahead are never planned.
        self._drafting.passed()
        cap = outcome.cap if outcome.source == "drafter" else 0
        cost = self._steps(1 + outcome.verified, cap, waits=outcome.waited)
        tokens = outcome.accepted + 1.0
        if outcome.source == "drafter":
            promised = 1.0 + sum(self._drafts.survival(outcome.confidences, outcome.verified))
            self._drafting.judge(tokens + self._PROMISED * (promised - tokens) - cost)
            self._drafts.observe(outcome.confidences, outcome.verified, outcome.accepted)
        elif outcome.source == "lookup":
            self._matches.observe(outcome.match_length, outcome.verified, outcome.accepted)
        self._rate += 0.05 * (max(tokens / cost, 0.0) - self._rate)
        self._rate = min(max(self._rate, 1.0), 4.0)

    def plain_ahead(self, match_length: int) -> bool:
        if self._hopeful and self._drafting.resting < 2:
            return False
        if not self._lookup or match_length + 1 < MIN_MATCH_TOKENS:
            return True
        # A match that appears meanwhile is looked up one token later, and loses a part of what it is worth.
        value = self._best_lookup(match_length + 1, match_length + 1)[1]
        grows = self._matches.survival(match_length, 1)[0] if match_length >= MIN_MATCH_TOKENS else self._NEW_MATCH
        return self._DELAY * grows * value <= self._steps(1) - 1.0
