"""Every flag of `mlx-dspark race` arrives where it should: whole races on tiny models, in this process."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from tiny import write_head, write_llama

from dspark.commands.app import run
from dspark.commands.race_run import drive


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    return str(write_llama(root / "target")), str(write_head(root / "head"))


@pytest.fixture
def race(folders, tmp_path):
    """Run a race with the given flags; returns its exit code and its JSON."""

    def start(*flags: str) -> tuple[int, dict]:
        pair = ["--model", folders[0], "--drafter", folders[1]]
        prompt = [] if any(flag.startswith("--prompt") for flag in flags) else ["--prompt", "abc"]
        size = ["--max-tokens", "6", "--trials", "1"]
        code = run(["race", *pair, *prompt, *size, "--json", str(tmp_path / "race.json"), *flags])
        return code, json.loads((tmp_path / "race.json").read_text())

    return start


@pytest.fixture(scope="module")
def hot():
    """Tokens of a race at temperature 1.5 without any filter: made by the first who asks."""
    return []


def test_model_and_drafter(race):
    code, result = race()
    assert code == 0
    assert (result["pair"]["target"], result["pair"]["drafter"]) == ("target", "head")
    assert [arm["label"] for arm in result["arms"]][:3] == ["baseline", "lookup", "dspark"]
    assert result["summary"]["verdict"] == "identical"


def test_no_drafter(race):
    _, result = race("--drafter", "none")
    assert result["pair"]["drafter"] is None and [arm["label"] for arm in result["arms"]] == ["baseline", "lookup"]


def test_arm(race):
    _, result = race("--arm", "dspark:cap=3,lookup=off,confidence=0.3", "--max-tokens", "20")
    resolved = result["arms"][1]["resolved"]
    assert resolved == {"mode": "dspark", "cap": 3, "lookup": False, "confidence": 0.3}


def test_prompts_and_their_classes(race, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "ab", "class": "code"}\n{"prompt": "bc"}\n')
    _, result = race("--prompt", "abc", "--prompt-file", str(tmp_path / "p.jsonl"))
    assert [each["prompt"] for each in result["prompts"]] == ["abc", "ab", "bc"]
    assert "code" in result["summary"]["ratio"]["dspark"]


@pytest.mark.parametrize(
    ("flag", "value", "key"), [("--max-tokens", 9, "max_tokens"), ("--trials", 2, "trials"), ("--seed", 5, "seed")]
)
def test_counts(race, flag, value, key):
    _, result = race(flag, str(value))
    assert result["settings"][key] == value
    if key == "trials":
        assert len({trial["trial"] for trial in result["trials"]}) == 2
    if key == "max_tokens":
        assert max(len(trial["tokens"]) for trial in result["trials"]) <= 9


@pytest.mark.parametrize(
    ("flag", "value"), [("--temperature", "0.8"), ("--top-p", "0.5"), ("--top-k", "3"), ("--min-p", "0.2")]
)
def test_sampling(race, hot, flag, value):
    code, result = race("--temperature", "1.5", "--seed", "3", "--max-tokens", "20", flag, value)
    assert code == 0 and result["summary"]["verdict"] == "identical"
    assert result["settings"]["sampling"][flag.removeprefix("--").replace("-", "_")] == float(value)
    if not hot:
        _, bare = race("--temperature", "1.5", "--seed", "3", "--max-tokens", "20")
        hot.extend(bare["trials"][0]["tokens"])
    assert hot != result["trials"][0]["tokens"], "the setting changed nothing"


@pytest.mark.parametrize("flags", [("--temperature", "3"), ("--top-p", "0"), ("--top-k", "-1"), ("--min-p", "2")])
def test_sampling_out_of_range_is_a_usage_error(race, flags, folders, capsys):
    assert run(["race", "--model", folders[0], "--prompt", "abc", *flags]) == 2
    assert flags[0].removeprefix("--").replace("-", "_") in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--temperature", "3"), ("--profile", "nowhere.yaml")])
def test_what_cannot_be_meant_is_said_before_a_model_is_looked_for(tmp_path, flags, capsys):
    assert run(["race", "--model", str(tmp_path / "none"), "--prompt", "abc", *flags]) == 2
    assert flags[1] in capsys.readouterr().err


def test_kv_bits(tmp_path):
    """All arms read the same quantized cache."""
    target = str(write_llama(tmp_path / "wide", hidden_size=128, head_dim=32))
    flags = ["race", "--model", target, "--prompt", "abc", "--max-tokens", "12", "--trials", "1", "--kv-bits", "8"]
    assert run([*flags, "--json", str(tmp_path / "race.json")]) == 0
    assert json.loads((tmp_path / "race.json").read_text())["pair"]["kv_bits"] == 8


@pytest.mark.parametrize(("flag", "value"), [("--drafter-bits", "8"), ("--drafter-window", "2")])
def test_drafter_settings(race, flag, value):
    _, result = race(flag, value, "--max-tokens", "20")
    assert result["pair"][flag.removeprefix("--").replace("-", "_")] == int(value)
    assert result["summary"]["verdict"] == "identical"


@pytest.mark.parametrize(
    "flags",
    [
        ("--kv-bits", "3"),
        ("--drafter-bits", "x"),
        ("--drafter-bits", "7"),
        ("--drafter-window", "-1"),
        ("--drafter-window", "1.5"),
    ],
)
def test_load_settings_out_of_range_are_usage_errors(folders, flags, capsys):
    assert run(["race", "--model", folders[0], "--drafter", folders[1], "--prompt", "abc", *flags]) == 2
    assert flags[0].removeprefix("--").replace("-", " ").split()[0] in capsys.readouterr().err


def test_precision_belongs_to_the_demo_pair(folders, capsys):
    assert run(["race", "--model", folders[0], "--precision", "fp32"]) == 2
    assert "demo" in capsys.readouterr().err


def test_trust_remote_code(folders, tmp_path, capsys):
    folder = write_llama(tmp_path / "pointers")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "code.Model"}}))
    flags = ["race", "--model", str(folder), "--prompt", "abc", "--max-tokens", "3", "--trials", "1"]
    assert run(flags) == 1 and "auto_map" in capsys.readouterr().err
    assert run([*flags, "--trust-remote-code"]) == 0


def test_markdown(race, tmp_path):
    race("--markdown", str(tmp_path / "race.md"))
    assert "mlx-dspark" in (tmp_path / "race.md").read_text()


def test_an_argument_that_is_no_text_goes_into_markdown_as_escapes(race, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mlx-dspark", "race", "caf\udce9"])
    code, _ = race("--markdown", str(tmp_path / "race.md"))
    assert code == 0 and "caf\\udce9" in (tmp_path / "race.md").read_text("utf-8")


def test_a_file_that_can_no_longer_be_written_is_exit_1_with_the_other_file_there(race, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "sub"
    folder.mkdir()

    def remove_and_drive(*arguments):
        folder.rmdir()
        return drive(*arguments)

    monkeypatch.setattr("dspark.commands.race_run.drive", remove_and_drive)
    code, result = race("--markdown", str(folder / "race.md"))
    assert code == 1 and result["summary"]["verdict"] == "identical"
    assert " ".join(capsys.readouterr().err.split()).endswith("give another file")


def test_a_terminal_that_hangs_up_leaves_the_export_and_exit_129(folders, tmp_path):
    leader, follower = pty.openpty()
    flags = ["--model", folders[0], "--drafter", "none", "--prompt", "abc", "--max-tokens", "4", "--trials", "1000000"]
    with subprocess.Popen(
        [sys.executable, "-c", "from dspark.commands.app import main; main()", "race", *flags, "--json", "race.json"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=tmp_path,
        env=os.environ | {"TERM": "xterm"},
    ) as process:
        os.close(follower)
        while b"answer" not in os.read(leader, 65536):
            assert process.poll() is None
        os.close(leader)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 129
    assert json.loads((tmp_path / "race.json").read_text())["interrupted"]


@pytest.fixture
def wordy(tmp_path):
    """A tiny target whose tokenizer makes a token of each word, as far as a filler text is concerned."""
    folder = write_llama(tmp_path / "wordy")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pre_tokenizer": {"type": "Whitespace"}}))
    return folder


def test_depth_and_cooldown(wordy, tmp_path):
    flags = ["--model", str(wordy), "--prompt", "abc", "--max-tokens", "4", "--trials", "1", "--cooldown", "0.01"]
    assert run(["race", *flags, "--depth", "0,100", "--json", str(tmp_path / "race.json")]) == 0
    result = json.loads((tmp_path / "race.json").read_text())
    lengths = {trial["depth"]: trial["statistics"]["prompt_tokens"] for trial in result["trials"]}
    assert lengths[100] - lengths[0] == 100
    assert result["settings"]["cooldown_s"] == 0.01


def test_a_depth_beyond_the_window_is_a_usage_error(wordy, capsys):
    assert run(["race", "--model", str(wordy), "--prompt", "abc", "--max-tokens", "4", "--depth", "4k"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--depth 4k: " in said and "give at most 251" in said


@pytest.mark.parametrize("stdout", ["-", "/dev/stdout"])
def test_csv_on_stdout_is_alone_there(folders, stdout, capsys):
    flags = ["--model", folders[0], "--drafter", "none", "--prompt", "abc", "--max-tokens", "4", "--trials", "1"]
    assert run(["race", *flags, "--csv", stdout]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("date,chip,") and len(lines) == 3


@pytest.fixture
def suite(folders, wordy, tmp_path):
    """A suite of three models, of which the second does not exist, at two depths."""

    def write(**changes) -> str:
        models = [folders[0], str(tmp_path / "nowhere"), {"model": str(wordy), "drafter": "none"}]
        keys = {"models": models, "arms": ["lookup"], "prompts": [{"text": "abc"}], "max_tokens": 4, "trials": 1}
        (tmp_path / "suite.yaml").write_text(json.dumps({**keys, **changes}))
        return str(tmp_path / "suite.yaml")

    return write


def test_a_suite_races_what_it_can_and_says_what_it_cannot(suite, tmp_path, capsys):
    code = run(["race", "--suite", suite(depths=[0, 20]), "--json", str(tmp_path / "suite.json")])
    races = json.loads((tmp_path / "suite.json").read_text())["races"]
    said = capsys.readouterr()
    assert code == 1
    # The first model's tokenizer makes nothing of a filler text, the second is nowhere.
    assert [race["state"] for race in races] == ["done", "failed", "failed", "failed", "done", "done"]
    assert "nowhere" in races[2]["error"] and "--depth" in races[1]["error"]
    assert [race["result"]["summary"]["verdict"] for race in races if race["result"]] == ["identical"] * 3
    assert [line for line in said.err.splitlines() if line.startswith("race ")][5].startswith("race 6 of 6:")
    assert "\x1b" not in said.err + said.out and "failed" in said.out


def test_an_interrupted_suite_keeps_what_is_done_and_its_file_is_there_all_along(suite, tmp_path, monkeypatch):
    seen = []

    def drive_and_look(*arguments):
        path = tmp_path / "suite.json"
        seen.append(json.loads(path.read_text()) if path.exists() else None)
        if len(seen) == 2:
            signal.raise_signal(signal.SIGTERM)
        return drive(*arguments)

    monkeypatch.setattr("dspark.commands.race_run.drive", drive_and_look)
    assert run(["race", "--suite", suite(), "--json", str(tmp_path / "suite.json")]) == 143
    assert [race["state"] for race in seen[1]["races"]] == ["done", "failed", "not run"]
    document = json.loads((tmp_path / "suite.json").read_text())
    assert document["interrupted"] and [race["state"] for race in document["races"]] == ["done", "failed", "not run"]


def test_compare_passes_a_race_with_itself_and_fails_one_that_lost_half(race, tmp_path, capsys):
    flags = [flag for text in ("abc", "bca", "cab") for flag in ("--prompt", text)]
    _, result = race(*flags, "--trials", "2")
    for trial in result["trials"]:
        trial["total_s"] = 1.0  # this machine's noise is not the matter
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(result))
    assert run(["race", "--compare", str(old), str(old)]) == 0
    assert "passed: " in capsys.readouterr().out
    for trial in result["trials"]:
        if trial["arm"] == "dspark":
            trial["total_s"] *= 50
    new.write_text(json.dumps(result))
    out = tmp_path / "compared.md"
    assert run(["race", "--compare", str(old), str(new), "--json", "-", "--markdown", str(out)]) == 4
    compared = json.loads(capsys.readouterr().out)
    assert compared["fail_below"] == 0.95 and compared["comparisons"][0]["lost"]
    assert "| dspark | ratio to plain | 3 |" in out.read_text()
    assert run(["race", "--compare", str(old), str(new), "--fail-below", "0.001"]) == 0
    result["summary"]["verdict"] = "diverged"
    new.write_text(json.dumps(result))
    assert run(["race", "--compare", str(old), str(new)]) == 3
    result["pair"]["target"] = "other"
    result["summary"]["verdict"] = "identical"
    new.write_text(json.dumps(result))
    assert run(["race", "--compare", str(old), str(new)]) == 1
    assert "not comparable: other model" in capsys.readouterr().out
