"""Rounds of real answers that are timed: all with a whole draft, for as long as they are asked for."""

import gc
import time
import weakref

import mlx.core as mx
import pytest
from tiny import write_head, write_llama

from dspark.calibrating.look import look
from dspark.calibrating.rounds import AnswerRounds
from dspark.decoding.loop import Decoding
from dspark.engine import Engine, LoadOptions


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    engine = Engine()
    engine.load(LoadOptions(str(write_llama(root / "llama")), str(write_head(root / "head")), profile="none"))
    return engine._require()


def test_rounds_go_on_past_the_end_of_an_answer_and_each_verifies_a_whole_draft(pair, monkeypatch):
    begun, forwards = [], []
    target = pair.target
    monkeypatch.setattr(Decoding, "__init__", _counting(Decoding.__init__, begun))
    monkeypatch.setattr(
        target,
        "forward",
        lambda tokens, cache, real=target.forward: forwards.append(tokens.shape[1]) or real(tokens, cache),
    )
    rounds = AnswerRounds(target, pair.drafter, [[5, 6, 7], [8, 9]])
    assert rounds.cap == 3 and not begun
    for action in (rounds.waiting, rounds.onward):
        for _ in range(80):
            forwards.clear()
            action()
            assert forwards[-1] == 1 + rounds.cap
    assert not rounds.stuck and len(begun) >= 4, "80 rounds settle more than an answer of 64 tokens"


def test_what_leads_to_a_round_is_no_part_of_its_time(pair, monkeypatch):
    """Answers of few tokens: nearly every round has a prompt to read before it, which takes its time here."""
    real = pair.target.forward

    def forward(tokens, cache):
        if tokens.shape[1] > 4:
            time.sleep(0.3)
        return real(tokens, cache)

    monkeypatch.setattr(pair.target, "forward", forward)
    monkeypatch.setattr("dspark.calibrating.rounds._ANSWER_TOKENS", 6)
    rounds = AnswerRounds(pair.target, pair.drafter, [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14]])
    started = time.perf_counter()
    taken = [rounds.waiting() for _ in range(6)]
    assert time.perf_counter() - started > 0.6, "two prompts at least were read"
    assert all(0.0 < ms < 300.0 for ms in taken)


def test_a_head_that_trusts_itself_in_nothing_is_measured_like_any(pair, monkeypatch):
    monkeypatch.setattr("dspark.decoding.round.floats", lambda array: [0.0] * int(array.size))
    rounds = AnswerRounds(pair.target, pair.drafter, [[5, 6, 7]])
    monkeypatch.setattr("dspark.decoding.round.Rounds._check", lambda *_: None)
    assert rounds.waiting() > 0.0 and not rounds.stuck


def test_without_an_answer_nothing_is_claimed(pair):
    rounds = AnswerRounds(pair.target, pair.drafter, [])
    assert rounds.waiting() == 0.0 and rounds.onward() == 0.0
    assert rounds.stuck


def test_a_quick_look_knows_whole_rounds_where_there_is_a_drafter(pair):
    costs = look(pair.target, pair.drafter)
    assert costs.host.overlap_ms >= 0.0 and costs.host.wait_ms != 0.0 and costs.ahead_ms > 0
    assert look(pair.target, None).host.wait_ms == 0.0


def test_nothing_holds_the_weights_once_the_rounds_are_given_up(pair):
    gc.collect()
    gc.disable()
    try:
        rounds = AnswerRounds(pair.target, pair.drafter, [[5, 6, 7]])
        rounds.waiting()
        gone = weakref.ref(rounds)
        del rounds
        assert gone() is None
    finally:
        gc.enable()
        mx.clear_cache()


def _counting(real, begun):
    def init(self, *arguments, **options):
        begun.append(1)
        real(self, *arguments, **options)

    return init
