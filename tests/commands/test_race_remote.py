"""`mlx-dspark race --url`: a race in a server, seen from outside."""

import pytest
from contractserver import RACE, ContractServer, refused

from dspark.commands.app import run


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path))


def verdict(**arm):
    told = {"arm": 1, "label": "dspark", "outcome": arm.get("outcome"), **arm}
    return (*RACE[:-2], {"type": "verdict", "outcome": arm.get("outcome"), "arms": [told]}, RACE[-1])


def test_arms_and_verdict_are_shown(capsys):
    with ContractServer() as server:
        assert run(["race", "--url", server.url, "--prompt", "Say hi"]) == 0
        assert server.body["arms"] == [{"mode": "auto"}], "the server adds plain decoding"
    out = capsys.readouterr().out
    assert "Say hi" in out and "verdict: identical" in out and "the reference" in out and "10.0" in out


def test_a_divergence_is_an_exit_code_of_its_own_and_is_named(capsys):
    """P9."""
    found = {"position": 4, "expected": {"id": 1, "text": "a"}, "found": {"id": 2, "text": "b"}}
    with ContractServer() as server:
        server.race = verdict(outcome="diverged", gap=1.5, threshold=0.01, **found)
        assert run(["race", "--url", server.url, "--prompt", "x"]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "token 4 is 'b' where 'a' was due" in out and "1.5 apart, 0.01 is a tie" in out


def test_an_arm_that_failed_is_marked(capsys):
    """P9."""
    with ContractServer() as server:
        failed = {"type": "arm_done", "arm": 1, "label": "dspark", "error": "not finite"}
        server.race = (*RACE[:4], failed, {"type": "verdict", "outcome": None, "arms": []}, RACE[-1])
        assert run(["race", "--url", server.url, "--prompt", "x"]) == 1, "as a local race"
    out = capsys.readouterr().out
    assert "not finite" in out and "as an arm failed" in out


def test_plain_decoding_alone_is_no_failure(capsys):
    with ContractServer() as server:
        server.race = (*RACE[:3], {"type": "verdict", "outcome": None, "arms": []}, RACE[-1])
        assert run(["race", "--url", server.url, "--prompt", "x"]) == 0
    assert "nothing to compare" in capsys.readouterr().out


def test_a_race_that_breaks_off_is_an_error(capsys):
    with ContractServer() as server:
        server.race = RACE[:3]
        assert run(["race", "--url", server.url, "--prompt", "x"]) == 1
        server.race = ({"type": "error", "error": {"message": "the cache is gone"}},)
        assert run(["race", "--url", server.url, "--prompt", "x"]) == 1
    err = capsys.readouterr().err
    assert "broke off" in err and "the cache is gone" in err


def test_what_the_server_refuses_is_told_in_its_words(capsys):
    with ContractServer(refusal=refused(422, "mode dflash is not possible")) as server:
        assert run(["race", "--url", server.url, "--prompt", "x"]) == 2
    assert "mode dflash is not possible" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--trials", "2"], ["--model", "org/m"], ["--json", "-"], ["--temperature", "1"]])
def test_flags_of_a_race_here_are_refused(flag, capsys):
    assert run(["race", "--url", "http://127.0.0.1:9", *flag]) == 2
    assert f"{flag[0]} does nothing beside --url" in capsys.readouterr().err


def test_a_key_without_a_server_is_refused(capsys):
    assert run(["race", "--api-key", "sesame"]) == 2
    assert "add --url" in capsys.readouterr().err


LIES = {
    "arms": {"type": "verdict", "outcome": "identical", "arms": 5},
    "arms.0": {"type": "verdict", "outcome": "identical", "arms": ["x"]},
    "arms.0.arm": {"type": "verdict", "arms": [{"arm": {}, "label": "a"}]},
    "arms.0.expected": {"type": "verdict", "arms": [{"arm": 0, "label": "a", "position": 1, "expected": "x"}]},
    "completion_tokens": {"type": "arm_done", "arm": 0, "label": "a", "completion_tokens": 1.5},
    "label": {"type": "arm_done", "arm": 0, "label": 5},
}


@pytest.mark.parametrize("where", LIES)
def test_a_server_that_says_something_else_is_told_from_ours(where, capsys):
    with ContractServer() as server:
        server.race = (*RACE[:2], LIES[where], RACE[-1])
        assert run(["race", "--url", server.url, "--prompt", "x"]) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert f"has a wrong {where}: this is no mlx-dspark server" in err and "Traceback" not in err


def test_a_gap_without_its_bound_is_shown_alone(capsys):
    with ContractServer() as server:
        server.race = verdict(outcome="diverged", gap=1.5, position=4)
        assert run(["race", "--url", server.url, "--prompt", "x"]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert "1.5 apart" in out and "is a tie" not in out
