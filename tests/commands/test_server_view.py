"""`mlx-dspark machine --url` as a user types it, against a server that answers by the contract."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from contractserver import METRICS, READY, ROUNDS, ContractServer

from dspark.commands import server_view
from dspark.commands.app import run
from dspark.errors import NetworkError

MAIN = "from dspark.commands.entry import main; main()"


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path / "home"))


def seen(**metrics):
    return {"health": READY, "metrics": METRICS | metrics, "rounds": ROUNDS}


def told(view, width=100):
    return " ".join(" ".join(server_view.lines(view, width)).split())


def test_a_look_off_a_terminal_is_plain_lines(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with ContractServer() as server:
        assert run(["machine", "--url", server.url]) == 0
    said = capsys.readouterr()
    assert said.err == "" and said.out.isascii() and "\x1b" not in said.out
    assert all(len(line) <= 60 for line in said.out.splitlines())
    assert {line.split()[0] for line in said.out.splitlines() if line[0] != " "} >= {"server", "speed", "prompts"}


def test_json_is_one_object_and_nothing_else(capsys):
    with ContractServer() as server:
        assert run(["machine", "--url", f"{server.url}/v1/", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == seen()


def test_speed_is_of_the_latest_rounds_and_stands_beside_the_ceiling():
    """The round of the first token is not among them: its time is the prompt's."""
    said = told(seen())
    assert "20.0 tokens/s over the latest 2 rounds" in said
    assert "latest answer 30.0, ceiling of plain decoding 40.0 (75% of it)" in said


def test_acceptance_is_told_by_place():
    said = told(seen())
    assert "1 ############### 75% of 20" in said and "2 #### 20% of 15" in said


def test_memory_guard_and_prompts_are_told():
    said = told(seen())
    assert "MLX holds 1.5 GB" in said and "room 4.5 GB under the machine's free memory, 3 refused" in said
    assert "2 of 8 kept, 30 MB of 2 GB" in said and "3 hits, 1 partials, 1 misses" in said
    assert "latest: partial, 100 of 300 tokens kept, parted at 120" in said


def test_what_is_not_known_is_said_and_never_none():
    nothing = {"roofline": None, "memory_guard": None, "prefix_cache": None, "memory": None, "system": {}}
    view = {"health": {"status": "no_model"}, "metrics": METRICS | nothing, "rounds": {"rounds": [], "positions": []}}
    said = told(view)
    assert "None" not in said and "nothing decoded yet" in said and "no drafts yet" in said
    ceilingless = METRICS["roofline"] | {"ceiling_tokens_per_sec": None, "roofline_ratio": None}
    assert "latest answer 30.0, ceiling unknown" in told(seen(roofline=ceilingless))


def test_why_nothing_is_kept_is_said():
    off = METRICS["prefix_cache"] | {"mode": "off", "reason": "switched off"}
    assert "all read from their start: switched off" in told(seen(prefix_cache=off))


def test_a_load_under_way_is_seen():
    health = {"status": "loading", "phase": "downloading", "model": "org/m"}
    health["download"] = {"repo": "org/m", "bytes_done": 1_000_000, "bytes_total": None, "rate": None}
    said = told(seen() | {"health": health})
    assert "loading downloading" in said and "1 MB of unknown of org/m" in said


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--url", "http://127.0.0.1:1"], 1, "no answer from http://127.0.0.1:1"),
        (["--url", "nonsense"], 2, "is no address"),
        (["--url", "http://127.0.0.1:1", "--depth", "3"], 2, "--depth is about this machine"),
        (["--url", "http://127.0.0.1:1", "--model", "m"], 2, "--model is about this machine"),
        (["--api-key", "sesame"], 2, "--api-key belongs to a running server"),
    ],
)
def test_what_cannot_be_is_one_line(flags, code, said, capsys):
    assert run(["machine", *flags]) == code
    out = capsys.readouterr()
    assert said in out.err and out.err.count("\n") == 1 and out.out == ""


@pytest.mark.parametrize("width", [1, 5, 11])
def test_a_terminal_narrower_than_the_names_gets_lines_that_are_too_wide(width):
    assert told(seen(), width) == told(seen(), server_view.LEAST_WIDTH)


@pytest.mark.parametrize(
    "metrics",
    [
        {"queue": [1]},
        {"system": "busy"},
        {"prefix_cache": {"last": {"outcome": "hit"}}},
        {"memory": {"active_bytes": 10**400}},
        {"roofline": {"decode_tokens_per_sec": "fast"}},
    ],
)
def test_figures_of_another_kind_of_server_are_told_in_one_line(metrics):
    with pytest.raises(NetworkError, match="correct --url"):
        server_view.lines(seen(**metrics), 80)


def test_a_wrong_key_is_one_line(capsys):
    with ContractServer(key="sesame") as server:
        assert run(["machine", "--url", server.url, "--api-key", "wrong-key"]) == 2
    out = capsys.readouterr()
    assert "Invalid API key" in out.err and out.err.count("\n") == 1 and out.out == ""


def test_on_a_terminal_it_is_drawn_until_ctrl_c(tmp_path):
    """Ends with 0, and gives the cursor back."""
    with ContractServer() as server:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "machine", "--url", server.url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "MLX_DSPARK_HOME": str(tmp_path)},
        )
        os.close(theirs)
        shown, deadline = b"", time.monotonic() + 30
        try:
            while b"Ctrl-C ends" not in shown and time.monotonic() < deadline:
                shown += os.read(ours, 4096)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
            shown += os.read(ours, 4096)
        finally:
            process.kill()
            process.wait()
            os.close(ours)
    assert b"acceptance" in shown and b"Traceback" not in shown
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l") >= 0
