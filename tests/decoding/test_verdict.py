import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.decoding.verdict import (
    END,
    MANTISSA_BITS,
    TIE_ULPS,
    Answer,
    TopTwo,
    compare,
    first_divergence,
    repeating_tail,
    tie_threshold,
    worst,
)

EOS = (0, 2)
tokens = st.lists(st.integers(0, 50), max_size=20).map(tuple)
answers = st.builds(Answer, tokens, st.booleans())


def never(context: tuple[int, ...]) -> TopTwo:
    raise AssertionError("the target was asked")


def judge(expected: Answer, found: Answer, best: TopTwo, dtype: str = "float32"):
    return compare(expected, found, dtype=dtype, eos=EOS, top_two=lambda context: best)


@given(answers)
def test_equal_answers_are_identical_and_the_target_is_not_asked(answer: Answer) -> None:
    verdict = compare(answer, answer, dtype="float32", eos=EOS, top_two=never)
    assert verdict.outcome == "identical" and verdict.evidence is None


@given(tokens, tokens, tokens)
def test_the_first_divergence_is_where_the_common_beginning_ends(
    head: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    at = first_divergence(head + one, head + other)
    if at is None:
        assert one == other
    else:
        assert (head + one)[:at] == (head + other)[:at]
        assert (head + one)[at : at + 1] != (head + other)[at : at + 1]
    assert first_divergence(head + other, head + one) == at


@given(answers, answers, st.sampled_from(["float32", "bfloat16"]), st.floats(0, 100), st.floats(-50, 50))
def test_a_tie_needs_both_tokens_among_the_two_best_and_a_small_gap(
    expected: Answer, found: Answer, dtype: str, gap: float, logit: float
) -> None:
    best = TopTwo(expected.ids[0] if expected.tokens else 1, found.ids[0] if found.tokens else 3, gap, logit)
    verdict = judge(expected, found, best, dtype)
    if verdict.outcome == "tied":
        seen = verdict.evidence
        assert seen is not None and {seen.expected, seen.found} == {best.first, best.second}
        assert gap < seen.threshold == tie_threshold(dtype, logit)
    assert (verdict.outcome == "identical") == (expected.ids == found.ids)


def test_a_small_gap_between_the_two_tokens_is_a_tie_either_way_round() -> None:
    one, other = Answer((5, 6, 7), False), Answer((5, 8, 9), False)
    for best in (TopTwo(6, 8, 1e-5, 20.0), TopTwo(8, 6, 1e-5, 20.0)):
        verdict = judge(one, other, best)
        assert verdict.outcome == "tied"
        assert verdict.evidence is not None
        assert (verdict.evidence.position, verdict.evidence.expected, verdict.evidence.found) == (1, 6, 8)


@pytest.mark.parametrize(
    "best",
    [
        TopTwo(6, 8, 0.5, 20.0),  # a clear choice
        TopTwo(6, 9, 1e-6, 20.0),  # a tie, but of other tokens
        TopTwo(3, 4, 1e-6, 20.0),  # neither token
        TopTwo(6, 8, math.nan, 20.0),
    ],
)
def test_everything_else_is_a_divergence(best: TopTwo) -> None:
    assert judge(Answer((5, 6), False), Answer((5, 8), False), best).outcome == "diverged"


@pytest.mark.parametrize("logit", [math.inf, -math.inf, math.nan])
def test_a_logit_that_is_no_number_gets_the_strictest_threshold(logit: float) -> None:
    assert tie_threshold("float32", logit) == tie_threshold("float32", 1.0)


def test_the_target_is_asked_after_the_common_tokens() -> None:
    asked = []

    def top_two(context: tuple[int, ...]) -> TopTwo:
        asked.append(context)
        return TopTwo(7, 9, 1.0, 20.0)

    compare(Answer((5, 6, 7), True), Answer((5, 6, 9), True), dtype="float32", eos=EOS, top_two=top_two)
    assert asked == [(5, 6)]


def test_an_answer_that_ends_earlier_differs_at_its_end_by_the_end_of_sequence_token() -> None:
    verdict = judge(Answer((5, 6), True), Answer((5, 6, 7), False), TopTwo(2, 7, 1e-6, 20.0))
    assert verdict.outcome == "tied"
    assert verdict.evidence is not None
    assert (verdict.evidence.position, verdict.evidence.expected, verdict.evidence.found) == (2, 2, 7)
    assert judge(Answer((5, 6), True), Answer((5, 6, 7), False), TopTwo(2, 7, 3.0, 20.0)).outcome == "diverged"


def test_an_end_of_sequence_token_with_id_zero_is_named() -> None:
    verdict = judge(Answer((5,), True), Answer((5, 7), True), TopTwo(7, 9, 3.0, 20.0))
    assert verdict.evidence is not None and verdict.evidence.expected == 0


def test_an_answer_cut_short_without_an_end_is_a_divergence_whatever_the_gap() -> None:
    verdict = compare(Answer((5, 6, 7), False), Answer((5, 6), False), dtype="float32", eos=EOS, top_two=never)
    assert verdict.outcome == "diverged"
    assert verdict.evidence is not None and verdict.evidence.found is None


def test_another_reason_to_finish_on_the_same_tokens_is_a_divergence() -> None:
    verdict = compare(Answer((5, 6), False), Answer((5, 6), True), dtype="float32", eos=EOS, top_two=never)
    assert verdict.outcome == "diverged"


@pytest.mark.parametrize(("dtype", "ulp"), [("float32", 2.0**-19), ("float16", 2.0**-6), ("bfloat16", 2.0**-3)])
def test_the_threshold_is_a_multiple_of_the_last_place_of_the_logit(dtype: str, ulp: float) -> None:
    assert tie_threshold(dtype, 20.0) == tie_threshold(dtype, -31.9) == TIE_ULPS[dtype] * ulp
    assert tie_threshold(dtype, 32.0) == 2 * tie_threshold(dtype, 31.9)
    assert tie_threshold(dtype, 0.0) == tie_threshold(dtype, 1.0) == TIE_ULPS[dtype] * 2.0 ** -MANTISSA_BITS[dtype]


def test_a_coarser_format_has_a_wider_threshold() -> None:
    assert tie_threshold("float32", 20) < tie_threshold("float16", 20) < tie_threshold("bfloat16", 20)
    assert tie_threshold("mlx.core.float32", 20) == tie_threshold("float32", 20)


def test_the_worst_outcome_counts() -> None:
    assert worst(["identical", "tied", "identical"]) == "tied"
    assert worst(["tied", "diverged"]) == "diverged"
    assert worst([]) is None


@given(st.lists(st.integers(0, 9), max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_a_text_that_ends_in_the_same_words_over_and_over_is_a_loop(head: list[int], words: list[int]) -> None:
    period = repeating_tail(head + words * 30)
    assert period is not None and len(words) % period == 0


@pytest.mark.parametrize("length", [0, 1, 23, 60, 200])
def test_a_text_without_repetition_is_no_loop(length: int) -> None:
    assert repeating_tail(random.Random(1).sample(range(1000), length)) is None


def test_saying_a_thing_three_times_is_no_loop() -> None:
    words = list(range(20))
    assert repeating_tail(words * 3) is None
    assert repeating_tail([*words * 4, 99]) is None
    assert repeating_tail([1, 2] * 11) is None  # too short to tell


def test_the_end_marker_is_no_token() -> None:
    assert END < 0
    assert Answer((1, 2), True).ids == (1, 2, END)
