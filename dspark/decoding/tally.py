"""Counting what a generation does, round by round."""

from dspark.decoding.events import Statistics
from dspark.tuning.pilot import Source


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

    @property
    def rounds(self) -> int:
        """Rounds after the first token."""
        return sum(self._rounds.values())

    def count(self, source: Source, verified: int, accepted: int, settled: int) -> None:
        """Count a round: `verified` proposals, `accepted` of them, `settled` tokens."""
        self._rounds[source] += 1
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
        )
