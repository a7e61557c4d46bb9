"""`.ci/apple-silicon` with a stand-in for the command: what is run, what is told, and the exit code."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "apple-silicon"
COMMAND = """#!/usr/bin/env bash
echo "$*" >>"$LOG"
file() { while [ $# -gt 1 ]; do if [ "$1" = "$wanted" ]; then echo "$2"; fi; shift; done; }
wanted=--markdown; markdown=$(file "$@"); wanted=--json; json=$(file "$@")
case "$*" in
  calibrate*) echo '{"derived": {}}'; exit "${CALIBRATE_CODE:-0}" ;;
  *--compare*) echo "# compared" >"$markdown"; exit "${COMPARE_CODE:-0}" ;;
  race*) if [ -z "${NO_RESULT:-}" ]; then echo '{}' >"$json"; echo "# raced" >"$markdown"; fi; exit "${RACE_CODE:-0}" ;;
esac
"""


@pytest.fixture
def ci(tmp_path: Path):
    """Run the script; returns exit code, stdout, the summary, and the command lines."""
    command = tmp_path / "command"
    command.write_text(COMMAND)
    command.chmod(0o755)

    def run(*arguments: str, **variables: str) -> tuple[int, str, list[str]]:
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        variables = {"MLX_DSPARK": str(command), "OUT": str(tmp_path / "out"), "LOG": str(log), **variables}
        kept = {name: value for name, value in os.environ.items() if name not in ("GITHUB_STEP_SUMMARY", "RACE")}
        done = subprocess.run(
            [str(SCRIPT), *arguments], env=kept | variables, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, log.read_text().splitlines()

    return run


def test_calibrates_races_and_says_that_there_is_nothing_to_compare_with(ci, tmp_path: Path) -> None:
    code, out, ran = ci()
    assert code == 0 and (tmp_path / "out" / "calibrate.json").read_text() == '{"derived": {}}\n'
    assert [line.split()[0] for line in ran] == ["calibrate", "race"]
    assert "# raced" in out and "Not compared: there is no last green result." in out


def test_compares_with_the_last_green_result(ci, tmp_path: Path) -> None:
    (tmp_path / "green.json").write_text("{}")
    code, out, ran = ci("green.json", RACE="--trials 1", FAIL_BELOW="0.9")
    assert code == 0 and "# compared" in out
    assert ran[1].startswith("race --trials 1 --json")
    assert ran[2].startswith(f"race --compare green.json {tmp_path}/out/race.json --fail-below 0.9 ")


def test_the_table_goes_to_the_summary_of_the_job(ci, tmp_path: Path) -> None:
    _, out, _ = ci(GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"))
    assert out == "" and "# raced" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({"CALIBRATE_CODE": "1"}, 1),
        ({"RACE_CODE": "3", "CALIBRATE_CODE": "1"}, 3),
        ({"COMPARE_CODE": "4"}, 4),
        ({"COMPARE_CODE": "1"}, 0),
        ({"RACE_CODE": "1", "NO_RESULT": "1"}, 1),
    ],
)
def test_every_step_runs_and_the_worst_exit_code_counts(ci, tmp_path: Path, variables, code: int) -> None:
    (tmp_path / "green.json").write_text("{}")
    found, out, ran = ci("green.json", **variables)
    assert found == code
    assert len(ran) == (2 if "NO_RESULT" in variables else 3)
    if "NO_RESULT" in variables:
        assert "Not compared: this race left no result." in out


def test_the_result_of_an_earlier_run_is_not_taken_for_this_one(ci, tmp_path: Path) -> None:
    ci()
    _, out, _ = ci(NO_RESULT="1", RACE_CODE="1")
    assert "# raced" not in out and "left no result" in out
