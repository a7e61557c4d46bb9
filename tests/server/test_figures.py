"""The figures of an answer: what is not known is None."""

import pytest
from chatting import THINK, chat_tokenizer

from dspark.decoding.events import Statistics, TokenLogprob
from dspark.server.figures import Run, figures, reasoning_tokens, scores, usage

FIELDS = {
    "prompt_tokens": 100,
    "cached_tokens": 60,
    "completion_tokens": 20,
    "prefill_seconds": 0.5,
    "decode_seconds": 2.0,
    "total_seconds": 2.5,
    "target_forwards": 11,
    "rounds": 10,
    "drafter_rounds": 8,
    "lookup_rounds": 2,
    "plain_rounds": 0,
    "drafted": 30,
    "accepted": 10,
    "emitted": 20,
    "offered_at": (10,),
    "accepted_at": (10,),
    "decay_ratio": 0.9,
    "swap_delta_bytes": 4096,
    "cold": False,
}
RUN = Run("dspark", 4, ttft_seconds=0.6, total_seconds=2.7, ceiling_tokens_per_second=5.0)


def told(**changed):
    return Statistics(**{**FIELDS, **changed})


def test_the_block():
    block = figures(told(), RUN)
    assert block == {
        "mode": "dspark",
        "cap": 4,
        "accept_len": 2.0,
        "tokens_per_sec": 8.0,
        "decode_tokens_per_sec": 10.0,
        "target_forwards": 11,
        "lookup_rounds": 2,
        "prompt_tokens": 100,
        "cached_tokens": 60,
        "completion_tokens": 20,
        "context_tokens": 120,
        "prefill_seconds": 0.5,
        "decode_seconds": 2.0,
        "ttft_seconds": 0.6,
        "prefill_tokens_per_sec": 80.0,
        "ceiling_tokens_per_sec": 5.0,
        "roofline_ratio": 2.0,
        "decay_ratio": 0.9,
        "swap_delta_bytes": 4096,
        "cold": False,
    }
    assert "lookup_rounds" not in figures(told(lookup_rounds=0), RUN)


def test_n9_nothing_generated_and_no_time_taken():
    empty = told(completion_tokens=0, emitted=0, rounds=0, prefill_seconds=0.0, decode_seconds=0.0, total_seconds=0.0)
    block = figures(empty, Run("baseline"))
    names = ("accept_len", "tokens_per_sec", "decode_tokens_per_sec", "prefill_tokens_per_sec", "roofline_ratio")
    assert [block[name] for name in names] == [None] * 5
    used = usage(empty, Run("baseline"), 0)
    assert (used.prompt_tokens_per_second, used.generation_tokens_per_second, used.ttft_seconds) == (None, None, None)


def test_usage_counts_uncached_tokens_alone():
    used = usage(told(), RUN, 3)
    assert (used.prompt_tokens, used.cached_tokens, used.completion_tokens, used.reasoning_tokens) == (100, 60, 20, 3)
    assert (used.prompt_tokens_per_second, used.generation_tokens_per_second) == (80.0, 10.0)
    assert (used.ttft_seconds, used.total_seconds) == (0.6, 2.7)


@pytest.mark.parametrize(("characters", "count"), [(0, 0), (1, 1), (8, 2), (17, 11), (18, 12), (99, 12)])
def test_tokens_of_a_thought(characters, count):
    tokenizer = chat_tokenizer(tokens=THINK)
    tokens = tokenizer.encode("x<think>abcdefghij", add_special_tokens=False)
    assert len(tokens) == 12
    assert reasoning_tokens(tokenizer, tokens, characters) == count


def test_texts_and_bytes_of_scored_tokens():
    tokenizer = chat_tokenizer()
    whole, half = tokenizer.encode("a")[0], tokenizer.encode("ž")[0]
    [score] = scores(tokenizer, [TokenLogprob(whole, -0.5, ((whole, -0.5), (half, -2.0)))]).tokens
    assert (score.text, score.data, score.logprob) == ("a", b"a", -0.5)
    assert [(other.text, other.data) for other in score.top] == [("a", b"a"), ("\ufffd", None)]
