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
def test_sampling(race, flag, value):
    code, result = race("--temperature", "1.5", "--seed", "3", "--max-tokens", "20", flag, value)
    assert code == 0 and result["summary"]["verdict"] == "identical"
    assert result["settings"]["sampling"][flag.removeprefix("--").replace("-", "_")] == float(value)
    _, bare = race("--temperature", "1.5", "--seed", "3", "--max-tokens", "20")
    assert bare["trials"][0]["tokens"] != result["trials"][0]["tokens"], "the setting changed nothing"


@pytest.mark.parametrize("flags", [("--temperature", "3"), ("--top-p", "0"), ("--top-k", "-1"), ("--min-p", "2")])
def test_sampling_out_of_range_is_a_usage_error(race, flags, folders, capsys):
    assert run(["race", "--model", folders[0], "--prompt", "abc", *flags]) == 2
    assert flags[0].removeprefix("--").replace("-", "_") in capsys.readouterr().err


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
