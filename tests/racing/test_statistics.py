from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.decoding.events import Statistics
from dspark.racing.prompts import OVERALL, Sections
from dspark.racing.statistics import Figures, geometric_mean, ratio, spread, summarise
from dspark.racing.trials import Trial

ratios = st.dictionaries(
    st.integers(0, 5), st.lists(st.floats(0.1, 10), min_size=1, max_size=5), min_size=1, max_size=4
)


def sections_of(*classes: str) -> Sections:
    return {**{name: (name,) for name in classes}, OVERALL: classes}


def trial(
    arm: str,
    total_s: float,
    *,
    section: str = "chat",
    prompt: int = 0,
    number: int = 0,
    tokens: int = 20,
    prefill_s: float = 0.0,
    rounds: int = 10,
    emitted: int = 19,
    offered: tuple[int, ...] = (),
    accepted: tuple[int, ...] = (),
) -> Trial:
    statistics = Statistics(
        prompt_tokens=5,
        cached_tokens=0,
        completion_tokens=tokens,
        prefill_seconds=prefill_s,
        decode_seconds=total_s - prefill_s,
        total_seconds=total_s,
        target_forwards=rounds + 1,
        rounds=rounds,
        drafter_rounds=rounds,
        lookup_rounds=0,
        plain_rounds=0,
        drafted=sum(offered),
        accepted=sum(accepted),
        emitted=emitted,
        offered_at=offered,
        accepted_at=accepted,
    )
    return Trial(prompt, section, arm, number, tuple(range(tokens)), "text", "length", statistics, total_s)


def test_a_class_ratio_is_the_median_of_pairs_and_the_overall_one_their_geometric_mean() -> None:
    trials = [
        *(trial("baseline", 4.0, number=n) for n in range(3)),
        *(trial("dspark", seconds, number=n) for n, seconds in enumerate((1.0, 2.0, 4.0))),  # 4, 2, 1
        *(trial("baseline", 4.0, section="code", prompt=1, number=n) for n in range(3)),
        *(trial("dspark", 8.0, section="code", prompt=1, number=n) for n in range(3)),  # 0.5
    ]
    table = summarise(trials, ["baseline", "dspark"], sections_of("chat", "code"), seed=0)
    values = {klass: seen.end_to_end.value for klass, seen in table["dspark"].items()}
    assert values == pytest.approx({"chat": 2.0, "code": 0.5, "overall": 1.0})
    assert {klass: seen.end_to_end.value for klass, seen in table["baseline"].items()} == pytest.approx(
        {"chat": 1.0, "code": 1.0, "overall": 1.0}
    )


def test_pairs_are_of_one_trial_so_that_drift_cancels() -> None:
    """B17: a clock that slows down over the session leaves the ratio alone."""
    slowing = [1.0, 2.0, 4.0, 8.0]
    trials = [trial("baseline", 3 * heat, number=n) for n, heat in enumerate(slowing)]
    trials += [trial("dspark", 2 * heat, number=n) for n, heat in enumerate(slowing)]
    seen = summarise(trials, ["baseline", "dspark"], sections_of("chat"), seed=0)["dspark"]["chat"]
    assert seen.end_to_end.value == pytest.approx(1.5)
    assert seen.end_to_end.interval is None or seen.end_to_end.interval.high == pytest.approx(1.5)


def test_answers_of_different_length_are_compared_by_rate() -> None:
    trials = [trial("baseline", 4.0, tokens=40), trial("dspark", 1.0, tokens=20)]
    seen = summarise(trials, ["baseline", "dspark"], sections_of("chat"), seed=0)["dspark"]["chat"]
    assert seen.end_to_end.value == pytest.approx(2.0)


def test_prompt_processing_is_in_the_end_to_end_ratio_and_not_in_the_decode_ratio() -> None:
    """B15: reading the prompt, decoding and the whole are three figures."""
    trials = [trial("baseline", 4.0, prefill_s=2.0), trial("dspark", 3.0, prefill_s=2.0)]
    seen = summarise(trials, ["baseline", "dspark"], sections_of("chat"), seed=0)["dspark"]["chat"]
    assert seen.end_to_end.value == pytest.approx(4 / 3)
    assert seen.decode.value == pytest.approx(2.0)
    assert (seen.prefill_s, seen.decode_s, seen.total_s) == (2.0, 1.0, 3.0)


def test_a_pair_without_its_other_half_is_left_out() -> None:
    trials = [trial("baseline", 4.0, number=0), trial("dspark", 2.0, number=0), trial("dspark", 1.0, number=1)]
    table = summarise(trials, ["baseline", "dspark", "lookup"], sections_of("chat"), seed=0)
    assert table["dspark"]["chat"].end_to_end.value == pytest.approx(2.0)
    assert table["lookup"]["chat"].end_to_end is None and table["lookup"]["overall"].total_s is None


def test_spread_is_of_repeats_and_not_of_different_prompts() -> None:
    trials = [trial("baseline", seconds, prompt=p, number=n) for p, seconds in enumerate((1, 100)) for n in range(3)]
    assert summarise(trials, ["baseline"], sections_of("chat"), seed=0)["baseline"]["chat"].spread == 0
    assert spread([9.0, 10.0, 12.0]) == pytest.approx(0.1)
    assert spread([9.0]) is None and spread([0.0, 0.0]) is None


def test_accepted_lengths_and_positions_are_sums_over_trials() -> None:
    trials = [
        trial("dspark", 1.0, rounds=10, emitted=30, offered=(10, 6), accepted=(6, 3)),
        trial("dspark", 1.0, number=1, rounds=5, emitted=6, offered=(5,), accepted=(1,)),
    ]
    seen = summarise(trials, ["baseline", "dspark"], sections_of("chat"), seed=0)["dspark"]["chat"]
    assert seen.accept_len == pytest.approx(36 / 15)
    assert (seen.offered_at, seen.accepted_at) == ((15, 6), (7, 3))


def test_a_higher_cap_that_accepts_as_much_is_not_ranked_below() -> None:
    """B11: two accepted a round under caps of 2, 4 and 8 are three tokens a round, whatever was proposed behind."""
    for cap in (2, 4, 8):
        tested = (10, 10, 10)[:cap]  # the third position was looked at and rejected; those behind it never were
        kept = (10, 10, 0)[:cap]
        trials = [trial("dspark", 1.0, rounds=10, emitted=30, offered=tested, accepted=kept)]
        seen = summarise(trials, ["baseline", "dspark"], sections_of("chat"), seed=0)["dspark"]["chat"]
        assert seen.accept_len == 3.0
        assert (seen.offered_at, seen.accepted_at) == (tested, kept)
    assert not [name for name in Figures.__dataclass_fields__ if "rate" in name or "share" in name]


def test_no_rounds_and_no_tokens_give_none_instead_of_a_division_by_zero() -> None:
    trials = [trial(arm, 1.0, tokens=0, rounds=0, emitted=0, prefill_s=1.0) for arm in ("baseline", "dspark")]
    seen = summarise(trials, ["baseline", "dspark"], sections_of("chat"), seed=0)["dspark"]["chat"]
    assert seen.accept_len is None and seen.decode is None and seen.decode_tokens_per_second is None
    assert seen.end_to_end.value == pytest.approx(1.0)


@settings(deadline=None)
@given(ratios, st.integers())
def test_the_interval_holds_the_ratio_within_what_was_seen_and_follows_the_seed(pairs, seed: int) -> None:
    values = [value for each in pairs.values() for value in each]
    seen = ratio([pairs], seed)
    assert seen is not None and seen.value == pytest.approx(median(values))
    if seen.interval is not None:
        assert seen.interval.low <= seen.interval.high
        assert min(values) * 0.999 <= seen.interval.low and seen.interval.high <= max(values) * 1.001
    else:
        assert len(set(values)) == 1
    assert ratio([pairs], seed) == seen


def test_more_trials_of_one_prompt_do_not_stand_in_for_other_prompts() -> None:
    steady = {0: [0.5] * 50, 1: [2.0] * 50}
    seen = ratio([steady], seed=1)
    assert seen is not None and seen.interval is not None
    assert (seen.interval.low, seen.interval.high) == (pytest.approx(0.5), pytest.approx(2.0))


def test_a_pair_a_class_gives_no_interval_however_many_classes() -> None:
    assert ratio([{0: [0.5]}, {1: [2.0]}], seed=0).interval is None


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=5))
def test_geometric_mean(values: list[float]) -> None:
    product = 1.0
    for value in values:
        product *= value
    assert geometric_mean(values) ** len(values) == pytest.approx(product)
