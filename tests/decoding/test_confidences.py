"""When the confidences of a draft are read: before it is verified, with its outcome, or never."""

import pytest
from tiny import write_head, write_llama

from dspark.decoding.events import Finished
from dspark.decoding.loop import Decoding
from dspark.decoding.request import Request
from dspark.engine import Engine, LoadOptions
from dspark.tuning.pilot import FixedPilot, Plan


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    engine = Engine()
    engine.load(LoadOptions(str(write_llama(root / "llama")), str(write_head(root / "head")), profile="none"))
    assert engine._require().drafter.has_confidence
    return engine._require()


class Asking(FixedPilot):
    """Drafts three tokens a round, asks for their confidences as told, and keeps what it is told of them."""

    def __init__(self, when):
        super().__init__(3, drafter=True, lookup=False)
        self.when, self.trimmed, self.outcomes = when, [], []

    def plan(self, match_length, match_tokens, room):
        plan = super().plan(match_length, match_tokens, room)
        return Plan(plan.source, plan.cap, self.when)

    def trim(self, confidences, count):
        self.trimmed.append(confidences)
        return 1

    def observe(self, outcome):
        if outcome.source == "drafter":
            self.outcomes.append(outcome)


def answer(pair, pilot):
    request = Request([5, 6, 7, 8], 24)
    *_, last = Decoding(pair.target, pair.drafter, pilot, request, lookup=False).events()
    assert isinstance(last, Finished)
    return last.tokens


def test_confidences_are_read_when_they_are_asked_for_and_never_move_a_token(pair):
    pilots = {when: Asking(when) for when in ("first", "after", "never")}
    assert len({answer(pair, pilot) for pilot in pilots.values()}) == 1
    first, after, never = pilots.values()
    assert first.trimmed and all(len(seen) == 3 for seen in first.trimmed[:-3])
    assert {outcome.verified for outcome in first.outcomes} == {1}
    assert all(outcome.waited and outcome.confidences for outcome in first.outcomes)
    assert not after.trimmed and not never.trimmed
    assert all(outcome.confidences and not outcome.waited for outcome in after.outcomes)
    assert all(outcome.confidences is None and not outcome.waited for outcome in never.outcomes)
    assert {outcome.verified for outcome in after.outcomes[:-3]} == {3}
