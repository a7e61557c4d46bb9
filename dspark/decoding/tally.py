"""Counting what a generation does, round by round."""

from collections.abc import Sequence

from dspark.decoding.events import Statistics
from dspark.tuning.pilot import Source

# A third of fewer rounds than this says nothing of a trend.
DECAY_ROUNDS = 8


class Tally:
    """Mutable counterpart of `Statistics`, owned by one sequence."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self.target_forwards = 0
        self._rounds: dict[Source, int] = {"drafter": 0, "lookup": 0, "plain": 0}
        self._drafted = 0
        self._emitted = 0
        self._offered: list[int] = []
        self._accepted: list[int] = []
        self._pace: list[tuple[int, float]] = []

    @property
    def rounds(self) -> int:
        """Rounds after the first token."""
        return sum(self._rounds.values())

    def count(self, source: Source, verified: int, accepted: int, settled: int, seconds: float) -> None:
        """Count a round: `verified` proposals, `accepted` of them, `settled` tokens in `seconds`."""
        self._rounds[source] += 1
        self._pace.append((settled, seconds))
        self._drafted += verified
        self._emitted += settled
        tested = min(verified, accepted + 1)
        while len(self._offered) < tested:
            self._offered.append(0)
            self._accepted.append(0)
        for k in range(tested):
            self._offered[k] += 1
            self._accepted[k] += k < accepted

    def statistics(self, *, completion_tokens: int, prefill_seconds: float, decode_seconds: float) -> Statistics:
        """The finished figures."""
        return Statistics(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=completion_tokens,
            prefill_seconds=prefill_seconds,
            decode_seconds=decode_seconds,
            total_seconds=prefill_seconds + decode_seconds,
            target_forwards=self.target_forwards,
            rounds=self.rounds,
            drafter_rounds=self._rounds["drafter"],
            lookup_rounds=self._rounds["lookup"],
            plain_rounds=self._rounds["plain"],
            drafted=self._drafted,
            accepted=sum(self._accepted),
            emitted=self._emitted,
            offered_at=tuple(self._offered),
            accepted_at=tuple(self._accepted),
            decay_ratio=decay_ratio(self._pace),
        )


def decay_ratio(pace: Sequence[tuple[int, float]]) -> float | None:
    """Speed of the last third of rounds by that of the first, from (tokens, seconds) a round; None with too few."""
    third = len(pace) // 3
    if third < DECAY_ROUNDS:
        return None
    early, late = (
        (sum(tokens for tokens, _ in part), sum(seconds for _, seconds in part))
        for part in (pace[:third], pace[-third:])
    )
    if min(*early, *late) <= 0:
        return None
    return (late[0] / late[1]) / (early[0] / early[1])
