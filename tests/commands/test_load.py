"""`mlx-dspark load` as a user types it."""

import json
import os
import subprocess
import sys

import pytest
from contractserver import READY, ContractServer
from tiny import write_head, write_llama

from dspark import client
from dspark.commands.app import run

MAIN = "from dspark.commands.entry import main; main()"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    return str(write_llama(root / "target")), str(write_head(root / "head"))


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(client, "POLL_SECONDS", 0.0)


@pytest.fixture
def load(folders, capsys):
    """Load the tiny pair with the given flags; returns the exit code and its JSON."""

    def start(*flags):
        capsys.readouterr()
        code = run(["load", "--model", folders[0], "--drafter", folders[1], "--json", *flags])
        return code, json.loads(capsys.readouterr().out)

    return start


def test_every_step_is_measured(load):
    code, report = load("--max-draft", "2")
    assert code == 0
    assert [step["name"] for step in report["steps"]] == ["resolve", "download", "load", "probe", "warm up"]
    assert all(step["seconds"] >= 0 for step in report["steps"])
    assert report["memory"]["peak_bytes"] >= report["memory"]["resident_bytes"] > 0
    assert [part["fetch_bytes"] for part in report["parts"]] == [0, 0]
    assert report["pair"]["modes"] == ["baseline", "lookup", "dspark"]


def test_a_profile_that_is_not_there_is_said_before_anything_is_fetched(folders, capsys):
    assert run(["load", "--model", folders[0], "--profile", "nowhere.yaml"]) == 2
    said = capsys.readouterr().err
    assert "nowhere.yaml does not exist" in said and "resolve" not in said


def test_what_a_token_reads_and_keeps(load):
    _, report = load("--no-warmup")
    rows_bytes = 6 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, float32
    assert report["context"]["kv_bytes_per_token"] == rows_bytes
    assert report["context"]["fitting_tokens"] == report["context"]["window_tokens"] == 256
    assert report["context"]["window_cache_bytes"] == 256 * rows_bytes
    assert report["pair"]["resident_bytes"] > report["bytes_per_token"] > 0


def test_a_table_for_people_on_a_pipe_under_c(folders):
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "load", "--model", folders[0], "--drafter", "none", "--max-draft", "0"],
        env=os.environ | {"LANG": "C", "NO_COLOR": "1", "COLUMNS": "60"},
        capture_output=True,
        check=True,
    )
    said = done.stdout.decode("ascii")
    assert "256 tokens take 196.6 kB; all of it fits" in " ".join(said.split())
    assert b"\x1b" not in done.stdout + done.stderr and b"load ..." in done.stderr


def test_a_dry_run_loads_nothing_and_says_whether_it_fits(load, monkeypatch):
    monkeypatch.setattr("dspark.engine.Engine.load", None)
    code, report = load("--dry-run")
    assert (code, report["verdict"]) == (0, "fits")
    assert report["weight_bytes"] == sum(part["weight_bytes"] for part in report["parts"])


def test_a_dry_run_of_what_cannot_fit_exits_1(tmp_path, capsys):
    folder = write_llama(tmp_path / "huge")
    os.truncate(folder / "model.safetensors", 1 << 43)  # takes no room on the disk
    assert run(["load", "--model", str(folder), "--drafter", "none", "--dry-run"]) == 1
    assert "verdict does not fit" in " ".join(capsys.readouterr().out.split())


def test_a_dry_run_offline_says_what_it_cannot_know(capsys, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert run(["load", "--model", "org/unheard-of", "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "check the network" in said and "verdict cannot be said" in said


def test_p6_a_running_server_is_sent_the_flags_given_and_nothing_else(folders, capsys, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_MAX_DRAFT", "3")
    with ContractServer() as server:
        assert run(["load", "--url", server.url, "--model", "org/m"]) == 0
        assert server.body == {"model": "org/m"}
    with ContractServer() as server:
        run(["load", "--url", server.url, "--model", folders[0], "--context-window", "0", "--no-warmup"])
        assert server.body == {"model": folders[0], "context_window": 0, "warmup": False}
    assert "hot" in capsys.readouterr().out


def test_the_servers_progress_goes_to_stderr_and_json_alone_to_stdout(capsys):
    loading = {"status": "loading", "phase": "downloading", "download": {"repo": "org/m", "bytes_done": 1}}
    with ContractServer(loading, {"status": "loading", "phase": "warming_up"}, READY) as server:
        assert run(["load", "--url", server.url, "--model", "org/m", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == READY
    assert said.err.splitlines() == ["downloading ...", "warming up ...", "ok ..."]


def test_what_the_server_says_stands_apart_from_its_name(capsys):
    with ContractServer(READY | {"context_window": 4096}) as server:
        assert run(["load", "--url", server.url, "--model", "org/m"]) == 0
    assert ["context_window", "4096"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--url", "http://127.0.0.1:1"], "--url needs the model"),
        (["--url", "http://127.0.0.1:1", "--model", "m", "--dry-run"], "leave --url out"),
        (["--url", "http://127.0.0.1:1", "--model", "m", "--trust-remote-code"], "--trust-remote-code is the server's"),
        (["--url", "http://127.0.0.1:1", "--model", "m", "--precision", "q4"], "--precision is the server's"),
        (["--enable-thinking"], "--enable-thinking belongs to a running server"),
        (["--api-key", "sesame"], "--api-key belongs to a running server"),
        (["--max-draft", "-1"], "--max-draft: '-1' is not possible"),
        (["--max-draft", "3.5"], "--max-draft: '3.5' is not possible"),
        (["--max-draft", ""], "--max-draft: '' is not possible"),
        (["--confidence-threshold", "nan"], "--confidence-threshold: 'nan' is not possible"),
    ],
)
def test_p4_what_cannot_be_meant_is_a_usage_error_of_one_line(flags, said, capsys):
    assert run(["load", *flags]) == 2
    out = capsys.readouterr()
    assert said in out.err and out.err.count("\n") == 1 and out.out == ""
