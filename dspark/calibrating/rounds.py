"""Rounds of a real answer, to be timed beside their parts: what the host adds to them shows only in the whole loop."""

from collections.abc import Generator, Sequence

from dspark.decoding.events import RoundCommitted
from dspark.decoding.loop import Decoding
from dspark.decoding.request import Request
from dspark.drafters.drafter import Drafter
from dspark.targets.target import Target
from dspark.tuning.pilot import FixedPilot

# Wide enough to show what a row more costs, and possible for nearly every drafter.
_CAP = 3
# Short, so that the context stays near the one at which the parts are timed.
_ANSWER_TOKENS = 64
# Read, and never cutting anything off.
_LEAST_CONFIDENCE = 1e-12


class AnswerRounds:
    """Answers prompts in turn, round by round, with drafts of `cap` that are verified whole."""

    def __init__(self, target: Target, drafter: Drafter, prompts: Sequence[Sequence[int]]) -> None:
        """`prompts` are token ids; nothing runs before the first round is asked for."""
        self.cap = min(_CAP, drafter.block)
        self.stuck = False
        self._waiting = _rounds(target, drafter, self.cap, prompts, _LEAST_CONFIDENCE)
        self._onward = _rounds(target, drafter, self.cap, prompts, 0.0)

    def waiting(self) -> None:
        """Do a round that reads its draft before it is verified."""
        self._step(self._waiting)

    def onward(self) -> None:
        """Do a round that does not."""
        self._step(self._onward)

    def _step(self, rounds: Generator[None]) -> None:
        self.stuck = self.stuck or next(rounds, "over") == "over"


def _rounds(
    target: Target, drafter: Drafter, cap: int, prompts: Sequence[Sequence[int]], confidence: float
) -> Generator[None]:
    """Pauses behind each round with a whole draft; ends when no prompt's answer has one.

    Not a method: it would hold what holds it, and keep the weights until Python looks for cycles.
    """
    pilot = FixedPilot(cap, drafter=True, lookup=False, confidence=confidence)
    fruitful = True
    while fruitful:
        fruitful = False
        for prompt in prompts:
            request = Request(list(prompt), _ANSWER_TOKENS)
            for event in Decoding(target, drafter, pilot, request, lookup=False).events():
                if isinstance(event, RoundCommitted) and event.drafted == cap:
                    fruitful = True
                    yield
