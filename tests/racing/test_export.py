import csv
import io
import json
from itertools import pairwise
from pathlib import Path

import pytest
from scripted import Pair, ScriptedDecoder
from scripted_race import DATE, STAMP, diverging, hold, runner, setup_of

from dspark.errors import StorageError
from dspark.machine.watch import Conditions
from dspark.racing.export import dumped, series_document, to_json, write
from dspark.racing.markdown import series_markdown, to_markdown
from dspark.racing.result import RaceResult, conclude
from dspark.racing.series import Entry, Series
from dspark.racing.spreadsheet import to_csv


def read(result: RaceResult):
    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(to_json(result), parse_constant=refuse)


def test_the_summary_has_verdict_ratios_and_accepted_lengths() -> None:
    summary = read(hold())["summary"]
    assert summary["verdict"] == "identical"
    assert summary["ratio"]["dspark"] == pytest.approx({"chat": 2.0, "code": 2.0, "overall": 2.0})
    assert summary["ratio"]["lookup"]["overall"] == pytest.approx(1.0)
    assert summary["accept_len"]["dspark"]["chat"] == pytest.approx(1.9)
    assert summary["decode_ratio"]["dspark"]["overall"] == pytest.approx(2.0)
    assert summary["figures"]["dspark"]["code"]["offered_at"] == [40]


def test_stamp_settings_and_resolved_arms_are_there() -> None:
    document = read(hold(None, "dspark:cap=3,lookup=off"))
    assert document["schema"] == 1
    assert document["command"] == "mlx-dspark race --arm dspark"
    assert document["stamp"]["chip"] == "Toy 1"
    assert document["settings"] == {"max_tokens": 20, "trials": 2, "seed": 0, "cooldown_s": 0.0, "sampling": None}
    (arm,) = (arm for arm in document["arms"] if arm["label"] == "dspark:cap=3,lookup=off")
    assert arm["resolved"] == {"mode": "dspark", "cap": 3, "lookup": False, "confidence": 0.0}
    assert (arm["verdict"], arm["repeatable"], arm["error"]) == ("identical", True, None)


def test_each_trial_keeps_its_tokens_text_times_and_cached_tokens() -> None:
    """B14, B15: cached tokens, reading, decoding and the whole stand beside each trial."""
    trials = read(hold())["trials"]
    assert len(trials) == 3 * 3 * 2
    assert len(trials[0]["tokens"]) == 20 and trials[0]["text"].startswith("<")
    assert trials[0]["total_s"] == pytest.approx(trials[0]["prefill_s"] + trials[0]["decode_s"])
    assert trials[0]["statistics"]["cached_tokens"] == 0


def test_figures_that_are_no_numbers_are_null() -> None:
    document = read(hold(ScriptedDecoder(broken=("lookup",))))
    assert document["stamp"]["load_average"] is None
    assert document["summary"]["ratio"]["lookup"] == {"chat": None, "code": None, "overall": None}
    assert [arm["error"] for arm in document["arms"]] == [None, "lookup went wrong; load another model", None]


def test_prompts_and_trials_say_their_class_and_depth() -> None:
    document = read(hold(depths=(0, 50)))
    assert [(each["class"], each["depth"]) for each in document["prompts"][:3]] == [
        ("chat", 0),
        ("chat", 50),
        ("code", 0),
    ]
    assert {(each["class"], each["depth"]) for each in document["trials"]} == {
        ("chat", 0), ("chat", 50), ("code", 0), ("code", 50),
    }  # fmt: skip
    assert {"chat", "chat@50", "overall@50", "overall"} <= set(document["summary"]["ratio"]["dspark"])


def test_a_suite_holds_each_race_under_its_name_with_its_state() -> None:
    series = Series("mlx-dspark race --suite s.yaml", DATE, (Entry("a", hold()), Entry("b", error="boom"), Entry("c")))
    races = json.loads(dumped(series_document(series)))["races"]
    assert [(each["name"], each["state"], each["error"]) for each in races] == [
        ("a", "done", None), ("b", "failed", "boom"), ("c", "not run", None),
    ]  # fmt: skip
    assert races[0]["result"] == read(hold()) and races[1]["result"] is None
    text = series_markdown(series)
    assert "| a | done | identical | dspark: 2.00 (-) | - |" in text and "| b | failed | - | - | boom |" in text


def test_markdown_sets_the_depths_side_by_side() -> None:
    text = to_markdown(hold(depths=(0, 50)))
    assert "## code at depth 50 (2 prompts)" in text
    assert "| arm | 0 | 50 |" in text
    assert "ratio by depth" not in to_markdown(hold())


def test_csv_has_a_row_an_arm_and_section_stamped() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([hold(depths=(0, 50)), hold(ScriptedDecoder(broken=("lookup",)))]))))
    assert len(rows) == 3 * 7 + 3 * 3
    assert {(row["chip"], row["mlx"], row["gpu_cores"]) for row in rows} == {("Toy 1", "9.9", "")}
    (seen,) = (row for row in rows[:21] if (row["arm"], row["class"], row["depth"]) == ("dspark", "code", "50"))
    assert float(seen["ratio"]) == pytest.approx(2.0) and seen["verdict"] == "identical" and seen["trials"] == "4"
    assert [row["depth"] for row in rows[:7]] == ["0", "0", "0", "50", "50", "50", ""]
    failed = [row for row in rows if row["error"]]
    assert {row["arm"] for row in failed} == {"lookup"} and {row["ratio"] for row in failed} == {""}


def test_a_failed_baseline_has_no_verdict_in_either_export() -> None:
    result = hold(ScriptedDecoder(broken=("baseline",)))
    assert read(result)["summary"]["verdict"] is None
    assert "**no verdict: plain decoding failed**" in to_markdown(result)


def test_a_divergence_comes_with_its_evidence() -> None:
    document = read(hold(diverging()))
    assert document["summary"]["verdict"] == "diverged"
    seen = next(check for check in document["checks"] if check["outcome"] == "diverged")["evidence"][-1]
    assert seen["position"] == 3 and seen["found"] == 999 and seen["top_two"]["gap"] == 1.5
    assert document["tokens"]["999"] == "<999>"


def test_no_folder_of_this_machine_gets_out() -> None:
    assert "/somewhere" not in to_json(hold()) + to_markdown(hold())


def test_json_is_ascii_with_a_trial_s_tokens_on_one_line() -> None:
    text = to_json(hold(ScriptedDecoder(greedy=lambda prompt: [sum(prompt) + at for at in range(30)])))
    assert text.isascii() and text.endswith("}\n")
    assert any(line.count(",") >= 20 for line in text.splitlines() if '"tokens"' in line)


def test_markdown_has_the_command_the_stamp_the_date_and_a_table_a_class() -> None:
    text = to_markdown(hold())
    assert "```\nmlx-dspark race --arm dspark\n```" in text
    assert "2026-01-02" in text and "| chip | Toy 1 |" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## chat (1 prompt)",
        "## code (2 prompts)",
        "## overall (2 classes)",
        "## Verdict",
    ]
    assert "**identical: " in text
    assert "| dspark | dspark cap=auto lookup=on confidence=0 | identical | yes |" in text


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_head() -> None:
    lines = to_markdown(hold(diverging())).splitlines()
    for line, rule in pairwise(lines):
        if rule.startswith("|---"):
            columns = line.count("|")
        if line.startswith("|") and "|---" not in line:
            assert line.replace("\\|", "").count("|") == columns


def test_a_file_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        write("text", tmp_path / "none" / "race.json")
    write("text ✓\n", tmp_path / "race.md")
    assert (tmp_path / "race.md").read_bytes() == "text ✓\n".encode()


def test_an_argument_that_is_no_text_can_be_exported(tmp_path: Path) -> None:
    race = runner(ScriptedDecoder())
    list(race.run())
    result = conclude(race, setup_of(race, "mlx-dspark race --json caf\udce9"), Pair(), STAMP, Conditions())
    write(to_markdown(result), tmp_path / "race.md")
    assert "caf\\udce9" in (tmp_path / "race.md").read_text("utf-8")
    assert read(result)["command"].endswith("caf\udce9")
