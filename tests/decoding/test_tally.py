"""Figures of a generation that could come out infinite, negative or made up."""

import pytest

from dspark.decoding.tally import DECAY_ROUNDS, Tally, decay_ratio


def test_decay_is_late_speed_by_early_speed():
    rounds = [(2, 0.1)] * 10 + [(2, 0.15)] * 10 + [(2, 0.2)] * 10
    assert decay_ratio(rounds) == pytest.approx(0.5)


def test_n9_too_few_rounds_say_nothing():
    assert decay_ratio([]) is None
    assert decay_ratio([(1, 0.1)] * (3 * DECAY_ROUNDS - 1)) is None
    assert decay_ratio([(1, 0.1)] * 3 * DECAY_ROUNDS) == pytest.approx(1.0)


def test_n9_rounds_without_time_or_tokens_give_null_and_not_infinity():
    assert decay_ratio([(1, 0.0)] * 40) is None
    assert decay_ratio([(0, 0.1)] * 40) is None


@pytest.mark.parametrize("tokens", [0, 1])
def test_n9_an_answer_of_no_or_one_token_in_no_time(tokens):
    told = Tally(20).statistics(completion_tokens=tokens, prefill_seconds=0.0, decode_seconds=0.0)
    assert (told.decode_tokens_per_second, told.prefill_tokens_per_second, told.decay_ratio) == (None, None, None)
    assert (told.accept_len, told.swap_delta_bytes, told.cold) == (None, None, None)
