from dataclasses import replace

import pytest
from scripted import ScriptedDecoder
from scripted_race import hold

from dspark.machine.watch import Conditions
from dspark.racing.result import RaceResult
from dspark.racing.warnings import find

QUIET = Conditions(others_cpu=0.05, swapped_in_bytes=0)


def kinds(result: RaceResult) -> list[str]:
    return [warning.kind for warning in result.warnings]


def told(result: RaceResult, kind: str) -> str:
    (message,) = (warning.message for warning in result.warnings if warning.kind == kind)
    return message


def test_a_clean_race_warns_of_nothing() -> None:
    assert kinds(hold()) == []


def test_repeats_that_lie_apart() -> None:
    times = iter([1.0, *(1.0 + 0.3 * (call % 2) for call in range(100))])
    result = hold(ScriptedDecoder(seconds=lambda mode, tokens: next(times) if mode == "lookup" else 1.0), trials=4)
    assert "lookup" in told(result, "spread") and "baseline" not in told(result, "spread")


def test_answers_too_short_to_time() -> None:
    assert "chat and code" in told(hold(max_tokens=8), "short")
    assert "--max-tokens" in told(hold(ScriptedDecoder(seconds=lambda mode, tokens: 0.01)), "short")


def test_arms_that_resolve_alike() -> None:
    assert told(hold(None, "dspark", "auto", "lookup"), "alike").startswith("dspark and auto resolve to the same")


def test_answers_that_repeat_themselves_without_end() -> None:
    looping = ScriptedDecoder(greedy=lambda prompt: [sum(prompt), *[33] * 60])
    message = [each.message for each in hold(looping, max_tokens=40).warnings if each.kind == "loop"]
    assert len(message) == 3 and message[0].startswith("prompt 1 (chat): the answer of baseline, lookup and dspark")
    ending = ScriptedDecoder(greedy=lambda prompt: [sum(prompt), *[33] * 30])
    assert "loop" not in kinds(hold(ending, max_tokens=40))


@pytest.mark.parametrize(("factor", "warned"), [(0.5, False), (2.0, True)])
def test_speculation_that_does_not_pay(factor: float, warned: bool) -> None:
    decoder = ScriptedDecoder(seconds=lambda mode, tokens: {"baseline": 1.0, "dspark": factor}.get(mode, 3.0))
    result = hold(decoder)
    assert ("slower" in kinds(result)) == warned
    if warned:
        assert "dspark, runs at 0.50" in told(result, "slower")


def test_a_reused_prefix() -> None:
    result = hold()
    first = result.trials[0]
    reused = replace(first, statistics=replace(first.statistics, cached_tokens=3))
    found = find(result.entrants, [reused, *result.trials[1:]], result.table, QUIET)
    assert [warning.kind for warning in found] == ["cached"]


def test_a_busy_and_a_swapping_machine() -> None:
    result = hold()
    found = find(result.entrants, result.trials, result.table, Conditions(0.5, 2**30, 0))
    assert [warning.kind for warning in found] == ["busy", "swapped"]
    assert "50%" in found[0].message and "1,024 MB" in found[1].message
    unknown = find(result.entrants, result.trials, result.table, Conditions())
    assert unknown == []


def test_what_the_machine_is_like_otherwise() -> None:
    result = hold()
    conditions = replace(QUIET, power_source="battery", thermal="heavy")
    found = find(result.entrants, result.trials, result.table, conditions)
    assert [warning.kind for warning in found] == ["battery", "hot"]
