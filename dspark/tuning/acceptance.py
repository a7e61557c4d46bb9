"""Estimates of how likely a proposal is to be accepted, learned while decoding. Pure arithmetic."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from dspark.tuning.traces import Trace, tested

# Older rounds fade: half of the weight lies in the last ~35 tested proposals of a bin.
_FADE = 0.98
CONFIDENCE_BINS = 10
MATCH_EDGES = (2, 3, 5, 9, 17)
# What recorded answers count for, against the tokens of the answer at hand.
_MOST_PRIOR_TRIALS = 12.0


@dataclass(frozen=True)
class Count:
    """`accepted` of `offered` proposals that were really tested."""

    accepted: int = 0
    offered: int = 0

    def and_one(self, accepted: bool) -> "Count":
        """One more."""
        return Count(self.accepted + accepted, self.offered + 1)


@dataclass(frozen=True)
class Prior:
    """Acceptance of a pair over recorded answers: by confidence bin, by draft position, by length of the match."""

    confidence: tuple[Count, ...] = ()
    position: tuple[Count, ...] = ()
    match: tuple[Count, ...] = ()


def prior_of(traces: Iterable[Trace], block: int) -> Prior:
    """Count every draft and every match of recorded answers."""
    confidence, position = [Count()] * CONFIDENCE_BINS, [Count()] * block
    match = [Count()] * len(MATCH_EDGES)
    for trace in traces:
        left = len(trace.places)
        for place in trace.places:
            left -= 1  # what would lie past the end of the record was never tested
            for k, right in tested(min(block, left), place.drafted):
                position[k] = position[k].and_one(right)
                if place.confidences is not None:
                    b = confidence_bin(place.confidences[k])
                    confidence[b] = confidence[b].and_one(right)
            if place.offered and left:  # the tokens after the next one are the next places' first
                match[match_bin(place.suffix)] = match[match_bin(place.suffix)].and_one(place.matched > 0)
    return Prior(tuple(confidence), tuple(position), tuple(match))


def confidence_bin(confidence: float) -> int:
    """Its tenth; a confidence that is no number is none."""
    return min(int(confidence * CONFIDENCE_BINS), CONFIDENCE_BINS - 1) if confidence > 0.0 else 0


def match_bin(length: int) -> int:
    """Which of `MATCH_EDGES` a match has reached."""
    return max((b for b, edge in enumerate(MATCH_EDGES) if length >= edge), default=0)


class Rate:
    """A success rate with a prior: `weight` imagined trials at `prior`. Old trials fade."""

    def __init__(self, prior: float, weight: float) -> None:
        self._successes = prior * weight
        self._trials = weight

    @property
    def value(self) -> float:
        """Between 0 and 1."""
        return self._successes / self._trials

    def learn(self, count: Count) -> None:
        """Take up what was recorded elsewhere, weighing no more than a few trials."""
        if count.offered:
            weight = min(float(count.offered), _MOST_PRIOR_TRIALS)
            self._successes += weight * count.accepted / count.offered
            self._trials += weight

    def observe(self, success: bool) -> None:
        """Count one trial."""
        self._successes = self._successes * _FADE + success
        self._trials = self._trials * _FADE + 1.0


class DraftAcceptance:
    """Chance of each proposal given that the ones before it were accepted.

    With a confidence head its estimate is corrected by what was seen in the same bin; without one the position decides.
    """

    def __init__(self, block: int, prior: Prior = Prior()) -> None:
        self._by_confidence = [Rate((b + 0.5) / CONFIDENCE_BINS, 6.0) for b in range(CONFIDENCE_BINS)]
        self._by_position = [Rate(0.5, 4.0) for _ in range(block)]
        for rates, counts in ((self._by_confidence, prior.confidence), (self._by_position, prior.position)):
            for rate, count in zip(rates, counts, strict=False):
                rate.learn(count)

    def survival(self, confidences: Sequence[float] | None, count: int) -> list[float]:
        """Chance that proposals 0..k are all accepted, for each k below `count`."""
        if confidences is None:
            chances = [self._by_position[k].value for k in range(count)]
        else:
            chances = [self._by_confidence[confidence_bin(c)].value for c in confidences[:count]]
        return list(accumulate(chances, mul))

    def observe(self, confidences: Sequence[float] | None, verified: int, accepted: int) -> None:
        """Learn from a round: positions past the first rejection were never tested."""
        for k, success in tested(verified, accepted):
            self._by_position[k].observe(success)
            if confidences is not None:
                self._by_confidence[confidence_bin(confidences[k])].observe(success)


class LookupAcceptance:
    """Chance of each looked-up proposal, by how long the match is once the ones before it were accepted."""

    _PRIORS = (0.35, 0.5, 0.65, 0.8, 0.95)

    def __init__(self, prior: Prior = Prior()) -> None:
        self._rates = [Rate(chance, 3.0) for chance in self._PRIORS]
        for rate, count in zip(self._rates, prior.match, strict=False):
            rate.learn(count)

    def survival(self, match_length: int, count: int) -> list[float]:
        """Chance that proposals 0..k are all accepted, for each k below `count`."""
        return list(accumulate((self._rates[match_bin(match_length + k)].value for k in range(count)), mul))

    def observe(self, match_length: int, verified: int, accepted: int) -> None:
        """Learn from a round."""
        for k, success in tested(verified, accepted):
            self._rates[match_bin(match_length + k)].observe(success)
