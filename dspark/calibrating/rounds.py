"""Rounds of a real answer, to be timed beside their parts: what the host adds to them shows only in the whole loop."""

import time
from collections.abc import Generator, Sequence
from dataclasses import replace

from dspark.decoding.events import RoundCommitted
from dspark.decoding.loop import Decoding
from dspark.decoding.request import Request
from dspark.drafters.drafter import Drafter
from dspark.targets.target import Target
from dspark.tuning.pilot import Confidences, FixedPilot, Plan

# Wide enough to show what a row more costs, and possible for nearly every drafter.
_CAP = 3
# Short, so that the context stays near the one at which the parts are timed.
_ANSWER_TOKENS = 64


class _Whole(FixedPilot):
    """Drafts of one length that are verified whole, whatever their confidences say and whenever these are read."""

    def __init__(self, cap: int, confidences: Confidences) -> None:
        super().__init__(cap, drafter=True, lookup=False)
        self._confidences = confidences

    def plan(self, match_length: int, match_tokens: int, room: int) -> Plan:
        plan = super().plan(match_length, match_tokens, room)
        return replace(plan, confidences=self._confidences) if plan.source == "drafter" else plan

    def trim(self, confidences: Sequence[float] | None, count: int) -> int:
        return count


class AnswerRounds:
    """Answers prompts in turn, round by round, with drafts of `cap` that are verified whole."""

    def __init__(self, target: Target, drafter: Drafter, prompts: Sequence[Sequence[int]]) -> None:
        """`prompts` are token ids; nothing runs before the first round is asked for."""
        self.cap = min(_CAP, drafter.block)
        self.stuck = False
        self._waiting = _rounds(target, drafter, self.cap, prompts, "first")
        self._onward = _rounds(target, drafter, self.cap, prompts, "never")

    def waiting(self) -> float:
        """Do a round that reads its draft before it is verified. Returns its milliseconds, without what led to it."""
        return self._step(self._waiting)

    def onward(self) -> float:
        """Do a round that does not."""
        return self._step(self._onward)

    def _step(self, rounds: Generator[float]) -> float:
        taken = next(rounds, None)
        self.stuck = self.stuck or taken is None
        return taken or 0.0


def _rounds(
    target: Target, drafter: Drafter, cap: int, prompts: Sequence[Sequence[int]], confidences: Confidences
) -> Generator[float]:
    """Milliseconds of each round with a whole draft, pausing behind it; ends when no prompt's answer has one.

    Not a method: it would hold what holds it, and keep the weights until Python looks for cycles.
    """
    pilot = _Whole(cap, confidences)
    fruitful = True
    while fruitful:
        fruitful = False
        for prompt in prompts:
            request = Request(list(prompt), _ANSWER_TOKENS)
            started = time.perf_counter()
            for event in Decoding(target, drafter, pilot, request, lookup=False).events():
                if isinstance(event, RoundCommitted) and event.drafted == cap:
                    fruitful = True
                    yield (time.perf_counter() - started) * 1e3
                # Reading a prompt and rounds with less of a draft are no part of the next whole one.
                started = time.perf_counter()
