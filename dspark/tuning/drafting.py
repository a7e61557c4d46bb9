"""Whether drafting pays in the answer at hand, and how long its drafts had better be. Pure: no MLX, no clock.

Constants were chosen by replaying recorded answers of the demo pair on five machines' costs, in several orders: the
optimum is broad, and nothing that one answer taught was of use in the next.
"""

from collections.abc import Sequence


class Drafting:
    """How drafting fares: its gain a round, in plain steps, and whether it rests.

    An answer begins in the hope of a gain. When losses have used it up drafting rests, until they are a small share of
    the rounds since; then it is tried again.
    """

    _HOPE, _HOPE_ROUNDS = 0.1, 8
    _FADE = 0.9
    _LEAST_REST_ROUNDS = 16
    _LOSS_SHARE = 0.03
    # What is left of the hope after a rest: enough to try.
    _TRY = 1e-3

    def __init__(self) -> None:
        self._gains = self._rounds = 0.0
        self._loss = 0.0
        self.resting = 0

    @property
    def gain(self) -> float:
        """Of a drafted round, the latest counting most."""
        return (self._gains + self._HOPE * self._HOPE_ROUNDS) / (self._rounds + self._HOPE_ROUNDS)

    def passed(self) -> None:
        """A round was done, of whatever kind."""
        self.resting = max(self.resting - 1, 0)

    def judge(self, gain: float) -> None:
        """A drafted round gained that much."""
        self._gains = self._FADE * self._gains + gain
        self._rounds = self._FADE * self._rounds + 1.0
        self._loss = max(self._loss - gain, 0.0)
        if self.gain < 0.0:
            self.resting = max(self._LEAST_REST_ROUNDS, int(self._loss / self._LOSS_SHARE))
            self._gains += (self._TRY - self.gain) * (self._rounds + self._HOPE_ROUNDS)
            self._loss = 0.0


class Lengths:
    """What drafts of each length gain when they are verified whole, and what they gain when they are read and trimmed.

    Reading a draft before it is verified makes the device wait. Each draft that was read is weighed both ways.
    """

    _MEMORY = 0.1
    # What was expected beforehand counts as so many drafts.
    _FIRST = 4
    # One draft in so many is read even where that does not pay: only then are all lengths seen.
    _EVERY = 16

    def __init__(self, whole: Sequence[float]) -> None:
        """`whole` is the gain to expect by length, from 1: of reading nothing is known, so it is left for later."""
        self._whole = list(whole)
        self._trimmed = min(whole)
        self._weighed = self._FIRST
        self._unread = 0

    def weigh(self, trimmed: float, whole: Sequence[float]) -> None:
        """A draft was read, and was to gain so much either way."""
        share = max(self._MEMORY, 1.0 / (self._weighed + 1))
        self._trimmed += share * (trimmed - self._trimmed)
        self._whole = [mean + share * (one - mean) for mean, one in zip(self._whole, whole, strict=True)]
        self._weighed += 1
        self._unread = 0

    def next(self) -> int:
        """The length at which the next draft is verified whole; 0 to read it first."""
        self._unread += 1
        best = max(self._whole)
        return self._whole.index(best) + 1 if best > self._trimmed and self._unread < self._EVERY else 0
