import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedDecoder
from scripted_race import diverging, hold

from dspark.errors import UsageError
from dspark.racing import report
from dspark.racing.export import document, dumped, to_json
from dspark.racing.regression import Comparison, _interval, compare, compare_all
from dspark.racing.saved import SavedRace, read_races

MACHINE = {"chip": "Apple M1", "gpu_cores": 8, "device": "gpu", "virtual": False, "os": "macOS 15", "mlx": "1"}


def race(
    speed: Callable[[str, int], float] = lambda arm, prompt: 1.0,
    *,
    noise: float = 0.02,
    seed: int = 0,
    prompts: int = 6,
    trials: int = 3,
    depth: int = 0,
    stamp: dict[str, Any] | None = None,
    conditions: dict[str, Any] | None = None,
    **changes: Any,
) -> SavedRace:
    """A saved race of `baseline` at 10 tok/s and `dspark` at 15, times `speed(arm, prompt)` and a lognormal noise."""
    draw = random.Random(seed)
    rates = {"baseline": 10.0, "dspark": 15.0}
    arms = changes.pop("arms", [{"label": arm, "resolved": {}, "error": None} for arm in rates])
    rates = {arm["label"]: rates[arm["label"]] for arm in arms}
    return SavedRace.model_validate(
        {
            "schema": 1,
            "date": "2026-01-02T03:04:05+00:00",
            "interrupted": False,
            "stamp": {**MACHINE, **(stamp or {})},
            "pair": {"target": "toy", "dtype": "float16"},
            "settings": {"max_tokens": 20, "sampling": None},
            "arms": arms,
            "prompts": [{"class": "own", "depth": depth, "prompt": f"p{at}"} for at in range(prompts)],
            "summary": {"verdict": "identical"},
            "conditions": {"others_cpu": 0.0, "swapped_in_bytes": 0, **(conditions or {})},
            "trials": [
                {
                    "prompt": at,
                    "arm": arm,
                    "trial": number,
                    "total_s": 20 / (rate * speed(arm, at) * draw.lognormvariate(0, noise)),
                    "tokens": list(range(20)),
                }
                for number in range(trials)
                for at in range(prompts)
                for arm, rate in rates.items()
            ],
            **changes,
        }
    )


def outcomes(found: Comparison) -> dict[tuple[str, str], str]:
    return {(change.arm, change.measure): change.outcome for change in found.changes}


def slower(factor: float, *arms: str) -> Callable[[str, int], float]:
    return lambda arm, prompt: factor if arm in arms else 1.0


def test_the_same_race_again_passes() -> None:
    found = compare("", race(seed=1), race(seed=2), 0.95)
    assert set(outcomes(found)) == {("baseline", "rate"), ("dspark", "ratio"), ("dspark", "rate")}
    assert not found.lost and not found.faults and found.incomparable is None


def test_an_arm_that_lost_a_fifth_against_plain_is_lost() -> None:
    found = compare("", race(seed=1), race(slower(0.8, "dspark"), seed=2), 0.95)
    assert outcomes(found)["dspark", "ratio"] == outcomes(found)["dspark", "rate"] == "lost"
    assert outcomes(found)["baseline", "rate"] == "ok"
    (ratio,) = (change for change in found.changes if change.measure == "ratio")
    assert [ratio.old, ratio.new, ratio.change] == pytest.approx([1.5, 1.2, 0.8], 0.05)
    assert ratio.interval.low < 0.8 < ratio.interval.high < 0.95


def test_a_machine_that_is_slower_today_loses_rates_and_no_ratio() -> None:
    found = compare("", race(seed=1), race(slower(0.8, "baseline", "dspark"), seed=2), 0.95)
    assert outcomes(found)["dspark", "ratio"] == "ok"
    assert outcomes(found)["baseline", "rate"] == outcomes(found)["dspark", "rate"] == "lost"


def test_a_loss_above_the_bound_is_none() -> None:
    assert not compare("", race(seed=1), race(slower(0.97, "dspark"), seed=2), 0.95).lost


@pytest.mark.parametrize("prompts", [3, 6])
def test_noise_of_a_tenth_fails_nothing(prompts: int) -> None:
    """B17: 15 pairs of equal races on a machine whose every answer is 10 % off, and no loss among them."""
    for seed in range(15):
        old, new = (race(noise=0.1, seed=2 * seed + at, prompts=prompts) for at in (0, 1))
        assert not compare("", old, new, 0.95).lost


def test_a_loss_of_a_fifth_is_seen_through_noise_of_a_tenth_on_the_built_in_twelve() -> None:
    old, new = race(noise=0.1, seed=1, prompts=12), race(slower(0.8, "dspark"), noise=0.1, seed=2, prompts=12)
    assert outcomes(compare("", old, new, 0.95))["dspark", "ratio"] == "lost"


def test_a_loss_of_a_tenth_is_seen_on_the_built_in_twelve() -> None:
    for seed in range(4):
        old = race(seed=2 * seed, prompts=12)
        new = race(slower(0.9, "dspark"), seed=2 * seed + 1, prompts=12)
        assert outcomes(compare("", old, new, 0.95))["dspark", "ratio"] == "lost"


def test_one_prompt_that_got_slow_is_not_taken_for_all() -> None:
    found = compare("", race(seed=1), race(lambda arm, at: 0.5 if arm == "dspark" and at == 0 else 1.0, seed=2), 0.95)
    assert outcomes(found)["dspark", "ratio"] == "unclear" and not found.lost


def test_prompts_that_differ_much_among_each_other_do_not_hide_a_loss() -> None:
    """Paired: what a prompt does to the ratio is in both races."""

    def uneven(factor: float) -> Callable[[str, int], float]:
        return lambda arm, at: (1 + at) * factor if arm == "dspark" else 1.0

    assert compare("", race(uneven(1.0), seed=1), race(uneven(0.85), seed=2), 0.95).lost


def test_too_few_prompts_give_no_interval_and_say_so() -> None:
    found = compare("", race(prompts=2), race(slower(0.2, "dspark"), prompts=2), 0.95)
    assert set(outcomes(found).values()) == {"unclear"} and {change.interval for change in found.changes} == {None}
    assert any("2 prompts are too few" in note for note in found.notes)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=3, max_size=6), st.floats(-0.5, 0.5))
def test_a_change_of_all_answers_moves_the_interval_by_as_much(logs: list[float], by: float) -> None:
    plain = _interval([([each], [each]) for each in logs], 0)
    moved = _interval([([each], [each + by]) for each in logs], 0)
    assert plain.low == plain.high == pytest.approx(1.0)
    assert moved.low == pytest.approx(moved.high)
    assert moved.low > 1 if by > 1e-9 else moved.low < 1 if by < -1e-9 else moved.low == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"stamp": {"chip": "Apple M4"}}, "other machine (chip Apple M1 before, Apple M4 now)"),
        ({"stamp": {"gpu_cores": 10}}, "other machine (gpu_cores 8 before, 10 now)"),
        ({"pair": {"target": "other", "dtype": "float16"}}, "other model (target toy before, other now)"),
        ({"pair": {"target": "toy", "dtype": "float32"}}, "other model (dtype"),
        ({"settings": {"max_tokens": 21, "sampling": None}}, "other settings (max_tokens 20 before, 21 now)"),
        ({"depth": 4096}, "no prompt in common"),
    ],
)
def test_what_cannot_be_compared_says_why_and_loses_nothing(changes: dict[str, Any], named: str) -> None:
    found = compare("", race(), race(slower(0.5, "dspark"), **changes), 0.95)
    assert found.incomparable is not None and named in found.incomparable
    assert not found.changes and not found.lost
    assert "nothing was compared" in report.comparison_verdict([found], 0.95)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ({}, {"stamp": {"os": "macOS 16"}}, "os changed"),
        ({"stamp": {"virtual": True}}, {"stamp": {"virtual": True}}, "virtual machine"),
        ({}, {"conditions": {"others_cpu": 0.5}}, "the new race was disturbed (busy)"),
        ({"conditions": {"swapped_in_bytes": 2**30}}, {}, "the old race was disturbed (swapped)"),
    ],
)
def test_rates_are_compared_on_one_undisturbed_machine_only(old, new, named: str) -> None:
    found = compare("", race(**old), race(slower(0.5, "baseline", "dspark"), **new), 0.95)
    assert {measure for _, measure in outcomes(found)} == {"ratio"} and not found.lost
    assert any("rates are not compared" in note and named in note for note in found.notes)


def test_versions_that_changed_are_said() -> None:
    found = compare("", race(), race(stamp={"mlx": "2"}), 0.95)
    assert "since 2026-01-02: mlx 1 -> 2" in found.notes


def test_only_common_prompts_are_compared_and_that_is_said() -> None:
    found = compare("", race(prompts=6), race(prompts=4), 0.95)
    assert {change.prompts for change in found.changes} == {4}
    assert any("only the 4 of 6 prompts" in note for note in found.notes)


def test_faults_of_the_new_race_are_told_whatever_its_speed() -> None:
    failed = [
        {"label": "baseline", "resolved": {}, "error": None},
        {"label": "dspark", "resolved": {}, "error": "boom"},
    ]
    missing = failed[:1]
    for changes, named in (
        ({"summary": {"verdict": "diverged"}}, "diverged"),
        ({"summary": {"verdict": None}}, "no verdict"),
        ({"interrupted": True}, "interrupted"),
        ({"arms": failed}, "dspark failed in the new race: boom"),
        ({"arms": missing}, "dspark is missing"),
    ):
        assert any(named in fault for fault in compare("", race(), race(**changes), 0.95).faults), named


def test_races_of_suites_are_compared_by_name(tmp_path) -> None:
    def suite(*names: str, error: str | None = None) -> dict:
        (tmp_path / "suite.json").write_text(
            dumped(
                {
                    "schema": 1,
                    "races": [{"name": name, "error": None, "result": document(hold(trials=1))} for name in names]
                    + ([{"name": "bad", "error": error, "result": None}] if error else []),
                }
            )
        )
        return read_races(tmp_path / "suite.json")

    found = {each.name: each for each in compare_all(suite("a", "b", "bad"), suite("a", "c", error="boom"), 0.95)}
    assert found["a"].changes and found["a"].incomparable is None
    assert found["b"].faults == ("not in the new result (it was not run)",)
    assert found["bad"].faults == ("not in the new result (boom)",)
    assert found["c"].incomparable == "the old result has none"


def test_a_result_reads_back_as_it_was_written(tmp_path) -> None:
    (tmp_path / "race.json").write_text(to_json(hold(ScriptedDecoder(broken=("lookup",)), depths=(0, 50))))
    saved = read_races(tmp_path / "race.json")[""].result
    assert [prompt.depth for prompt in saved.prompts] == [0, 50] * 3
    assert [arm.error is None for arm in saved.arms] == [True, False, True]
    assert len(saved.trials) == 24 and saved.summary.verdict == "identical"


def test_committed_results_can_still_be_read(request) -> None:
    for path in sorted((request.config.rootpath / "results").glob("race-*.json")):
        assert compare("", *[read_races(path)[""].result] * 2, 0.95).changes


def test_a_class_that_is_called_races_makes_no_suite(tmp_path) -> None:
    kept = json.loads(to_json(hold(trials=1)))
    kept["prompts"][0]["class"] = "races"
    (tmp_path / "race.json").write_text(json.dumps(kept))
    assert read_races(tmp_path / "race.json")[""].result.prompts[0].klass == "races"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "no result of race --json"),
        ("[]", "no result of race --json"),
        ("{}", "no result of race --json"),
        ('{"schema": 1, "races": 3}', "races: "),
        ("\\x00", "no result of race --json"),
    ],
)
def test_another_file_is_a_usage_error(tmp_path, content: str, named: str) -> None:
    (tmp_path / "race.json").write_text(content)
    with pytest.raises(UsageError, match=named) as caught:
        read_races(tmp_path / "race.json")
    assert "\n" not in str(caught.value)


def _first_trial(document: dict[str, Any], **changes: Any) -> None:
    document["trials"][0] |= changes


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda race: _first_trial(race, total_s=float("nan")), "trials.0.total_s"),
        (lambda race: _first_trial(race, total_s=float("inf")), "trials.0.total_s"),
        (lambda race: _first_trial(race, total_s=1e-320), "trials.0.total_s"),
        (lambda race: _first_trial(race, total_s=-1), "trials.0.total_s"),
        (lambda race: _first_trial(race, arm="zebra"), "a trial belongs to no arm"),
        (lambda race: _first_trial(race, prompt=10**30), "a trial belongs to no prompt"),
        (lambda race: race["trials"].append(race["trials"][0]), "an answer stands there twice"),
        (lambda race: race["arms"].append(race["arms"][1]), "two arms have the same label"),
    ],
)
def test_a_result_that_cannot_have_been_is_refused_as_a_whole(tmp_path, spoil, named: str) -> None:
    """B8 of results: a figure that arithmetic fails on must not pass, nor be left out without a word."""
    spoilt = document(hold(trials=1))
    spoilt = json.loads(dumped(spoilt))
    spoil(spoilt)
    path = tmp_path / "race.json"
    for content in (spoilt, {"schema": 1, "races": [{"name": "a", "result": spoilt}]}):
        path.write_text(json.dumps(content))
        with pytest.raises(UsageError, match=named):
            read_races(path)


def test_races_of_the_same_name_are_refused(tmp_path) -> None:
    entry = {"name": "a", "error": "boom"}
    (tmp_path / "suite.json").write_text(json.dumps({"schema": 1, "races": [entry, entry]}))
    with pytest.raises(UsageError, match="two races have the same name"):
        read_races(tmp_path / "suite.json")


def test_what_never_ends_is_not_read_to_its_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dspark.racing.saved.LARGEST_BYTES", 1000)
    with pytest.raises(UsageError, match="larger than"):
        read_races(Path("/dev/zero"))


def test_a_later_schema_and_a_missing_file_are_usage_errors(tmp_path) -> None:
    (tmp_path / "race.json").write_text(json.dumps({**json.loads(to_json(hold(diverging()))), "schema": 2}))
    with pytest.raises(UsageError, match="schema 2, this version reads 1"):
        read_races(tmp_path / "race.json")
    with pytest.raises(UsageError, match=r"none.json cannot be read \(No such file"):
        read_races(tmp_path / "none.json")
