"""Estimates of how likely a proposal is to be accepted, learned while decoding. Pure arithmetic."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

# Older rounds fade: half of the weight lies in the last ~35 tested proposals of a bin.
_FADE = 0.98


class Rate:
    """A success rate with a prior: `weight` imagined trials at `prior`. Old trials fade."""

    def __init__(self, prior: float, weight: float) -> None:
        self._successes = prior * weight
        self._trials = weight

    @property
    def value(self) -> float:
        """Between 0 and 1."""
        return self._successes / self._trials

    def observe(self, success: bool) -> None:
        """Count one trial."""
        self._successes = self._successes * _FADE + success
        self._trials = self._trials * _FADE + 1.0


class DraftAcceptance:
    """Chance of each proposal given that the ones before it were accepted.

    With a confidence head its estimate is corrected by what was seen in the same bin; without one the position decides.
    """

    _BINS = 10

    def __init__(self, block: int) -> None:
        self._by_confidence = [Rate((b + 0.5) / self._BINS, 6.0) for b in range(self._BINS)]
        self._by_position = [Rate(0.5, 4.0) for _ in range(block)]

    def survival(self, confidences: Sequence[float] | None, count: int) -> list[float]:
        """Chance that proposals 0..k are all accepted, for each k below `count`."""
        if confidences is None:
            chances = [self._by_position[k].value for k in range(count)]
        else:
            chances = [self._by_confidence[self._bin(c)].value for c in confidences[:count]]
        return list(accumulate(chances, mul))

    def observe(self, confidences: Sequence[float] | None, verified: int, accepted: int) -> None:
        """Learn from a round: positions past the first rejection were never tested."""
        for k in range(min(verified, accepted + 1)):
            success = k < accepted
            self._by_position[k].observe(success)
            if confidences is not None:
                self._by_confidence[self._bin(confidences[k])].observe(success)

    def _bin(self, confidence: float) -> int:
        # A confidence that is no number is none.
        return min(int(confidence * self._BINS), self._BINS - 1) if confidence > 0.0 else 0


class LookupAcceptance:
    """Chance of each looked-up proposal, by how long the match was."""

    _EDGES = (2, 3, 5, 9, 17)
    _PRIORS = (0.25, 0.4, 0.6, 0.8, 0.9)

    def __init__(self) -> None:
        self._rates = [Rate(prior, 3.0) for prior in self._PRIORS]

    def chance(self, match_length: int) -> float:
        """Per proposal, given that the ones before it were accepted."""
        return self._rates[self._bucket(match_length)].value

    def observe(self, match_length: int, verified: int, accepted: int) -> None:
        """Learn from a round."""
        rate = self._rates[self._bucket(match_length)]
        for k in range(min(verified, accepted + 1)):
            rate.observe(k < accepted)

    def _bucket(self, match_length: int) -> int:
        return max((b for b, edge in enumerate(self._EDGES) if match_length >= edge), default=0)
