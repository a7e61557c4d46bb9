from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dspark.racing.trials import rotated, schedule

counts = st.integers(1, 6)


@given(prompts=counts, trials=counts, arms=counts)
def test_every_arm_answers_every_prompt_in_every_trial_once(prompts: int, trials: int, arms: int) -> None:
    slots = list(schedule(prompts, trials, arms))
    assert len(slots) == len(set(slots)) == prompts * trials * arms


@given(prompts=counts, trials=counts, arms=counts)
def test_the_arms_of_one_prompt_run_back_to_back(prompts: int, trials: int, arms: int) -> None:
    """B17: arms are interleaved, so that heat reaches all alike."""
    slots = list(schedule(prompts, trials, arms))
    for begin in range(0, len(slots), arms):
        assert len({(slot.prompt, slot.number) for slot in slots[begin : begin + arms]}) == 1


def test_each_arm_of_a_prompt_goes_first_as_often_as_the_others() -> None:
    slots = list(schedule(prompts=4, trials=6, arms=3))
    first = Counter((slot.prompt, slot.arm) for slot in slots[::3])
    assert set(first.values()) == {2} and len(first) == 12


def test_rotation() -> None:
    assert rotated("abc", 4) == ["b", "c", "a"]
    assert rotated("", 4) == []
