"""`mlx-dspark launch` as a user types it."""

import json
import sys

import pytest
from contractserver import ContractServer

from dspark.commands.app import run

CLIENTS = ("claude", "codex", "opencode", "pi")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path / "tool"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Stand-ins for the clients: they note how they were started, and end with 7."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = """
import json, os, pathlib, sys
agent = os.environ.get("PI_CODING_AGENT_DIR")
told = {"arguments": sys.argv[1:], "environment": dict(os.environ)}
if agent:
    told["models"] = json.loads((pathlib.Path(agent) / "models.json").read_text())
pathlib.Path(os.environ["TOLD"]).write_text(json.dumps(told))
sys.exit(7)
"""
    for name in CLIENTS:
        (folder / name).write_text(f"#!{sys.executable}\n{script}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("TOLD", str(tmp_path / "told.json"))
    return lambda: json.loads((tmp_path / "told.json").read_text())


def files(home):
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() and "bin" not in path.parts)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_is_started_and_no_file_of_the_users_is_touched(programs, home, client):
    with ContractServer() as server:
        assert run(["launch", client, "--url", server.url, "--", "-x", "two words"]) == 7
    told = programs()
    assert told["arguments"][-2:] == ["-x", "two words"]
    assert server.url in json.dumps(told) and "org/m" in json.dumps(told)
    assert files(home) == ["told.json"]


def test_codex_speaks_responses_with_its_window(programs):
    """G9."""
    with ContractServer() as server:
        run(["launch", "codex", "--url", server.url])
    line = " ".join(programs()["arguments"])
    assert 'wire_api="responses"' in line and "model_context_window=4096" in line
    assert f'base_url="{server.url}/v1"' in line and "stream_idle_timeout_ms=" in line


def test_pi_gets_a_folder_of_its_own_that_is_gone_afterwards(programs):
    with ContractServer() as server:
        run(["launch", "pi", "--url", server.url])
    told = programs()
    provider = told["models"]["providers"]["mlx-dspark"]
    assert provider["baseUrl"] == f"{server.url}/v1" and provider["models"][0]["contextWindow"] == 4096
    from pathlib import Path

    assert not Path(told["environment"]["PI_CODING_AGENT_DIR"]).exists()


def test_a_client_that_is_not_installed_is_named_with_its_package(monkeypatch, home, capsys):
    monkeypatch.setenv("PATH", str(home))
    with ContractServer() as server:
        assert run(["launch", "claude", "--url", server.url]) == 2
    assert "npm install -g @anthropic-ai/claude-code" in capsys.readouterr().err


def test_a_server_without_a_model_is_told_with_the_remedy(capsys):
    with ContractServer() as server:
        server.models = []
        assert run(["launch", "claude", "--url", server.url]) == 1
    assert "mlx-dspark load --url" in capsys.readouterr().err


def test_no_server_is_told_with_the_remedy(capsys):
    assert run(["launch", "claude", "--url", "http://127.0.0.1:9"]) == 1
    assert "mlx-dspark serve" in capsys.readouterr().err


def test_the_environment_can_be_evaluated_by_a_shell(capsys):
    import subprocess

    with ContractServer() as server:
        assert run(["launch", "opencode", "--url", server.url, "--print-env"]) == 0
    out = capsys.readouterr().out
    shown = subprocess.run(["sh", "-c", f'{out}\nprintf %s "$OPENCODE_CONFIG_CONTENT"'], capture_output=True, text=True)
    assert json.loads(shown.stdout)["provider"]["mlx-dspark"]["options"]["baseURL"] == f"{server.url}/v1"


def test_a_file_is_written_only_when_asked_and_keeps_what_was_there(home, capsys):
    file = home / ".claude" / "settings.json"
    file.parent.mkdir()
    file.write_text('{"theme": "dark", "env": {"EDITOR": "vi", "ANTHROPIC_MODEL": "other"}}')
    with ContractServer() as server:
        assert run(["launch", "claude", "--url", server.url, "--write-config"]) == 0
    written = json.loads(file.read_text())
    assert written["theme"] == "dark" and written["env"]["EDITOR"] == "vi"
    assert written["env"]["ANTHROPIC_MODEL"] == "org/m" and str(file) in capsys.readouterr().err
    assert (
        json.loads(file.with_name("settings.json.before-mlx-dspark").read_text())["env"]["ANTHROPIC_MODEL"] == "other"
    )


def test_a_file_that_cannot_be_added_to_is_left_alone(home, capsys):
    file = home / ".codex" / "config.toml"
    file.parent.mkdir()
    file.write_text('model = "mine"\n')
    with ContractServer() as server:
        assert run(["launch", "codex", "--url", server.url, "--write-config"]) == 1
    assert file.read_text() == 'model = "mine"\n'
    assert "put this into it by hand" in capsys.readouterr().err


def test_two_ways_at_once_are_refused(capsys):
    assert run(["launch", "pi", "--print-env", "--write-config"]) == 2
