"""Claude Code and Codex, started as `mlx-dspark launch` starts them, complete a turn on the demo pair.

They come from npm. `MLX_DSPARK_CLIENTS` names the folder of their programs (`node_modules/.bin`).
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from serveprocess import PROGRAM

pytestmark = pytest.mark.real
SECONDS = 280
BRIEF = "You are brief."
# Their own prompts have thousands of tokens, which takes a CPU minutes; what is left has some hundreds.
CLAUDE = ("-p", "Say hello.", "--system-prompt", BRIEF, "--tools", "", "--output-format", "json")
CODEX = ("exec", "--json", "--skip-git-repo-check", "--ephemeral")
UNNEEDED = ("multi_agent", "goals", "shell_tool", "unified_exec", "plugins", "apps", "view_image")


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A home and a folder to work in, of the client's own, and nothing else of the user's."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    kept = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "LANG": "C.UTF-8"}
    kept |= {name: os.environ[name] for name in ("PYTHONPATH", "SSL_CERT_FILE") if name in os.environ}
    return kept, tmp_path / "work"


def ran(command, outside, path=None):
    environment, work = outside
    environment = (
        {**environment, "PATH": f"{Path(path).parent}{os.pathsep}{environment['PATH']}"} if path else environment
    )
    done = subprocess.run(
        command, env=environment, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_claude_code_completes_a_turn(demo, program, outside):
    path = program("claude")
    turn = json.loads(ran([*PROGRAM, "launch", "claude", "--url", demo.url, "--", *CLAUDE], outside, path))
    assert turn["subtype"] == "success" and turn["is_error"] is False and turn["result"].strip()
    (used,) = turn["modelUsage"].values()
    assert used["inputTokens"] + used["cacheReadInputTokens"] > 20 and used["outputTokens"] > 0
    assert used["contextWindow"] == demo.get("/health")["context_window"], "it knows the window"


def test_claude_code_completes_a_turn_in_the_environment_that_is_printed(demo, program, outside):
    path = program("claude")
    printed = ran([*PROGRAM, "launch", "claude", "--url", demo.url, "--print-env"], outside)
    script = f'{printed}\nexec "$@"'
    turn = json.loads(ran(["sh", "-c", script, "sh", path, *CLAUDE], outside))
    assert turn["subtype"] == "success" and turn["result"].strip()


def test_codex_completes_a_turn(demo, program, outside):
    path = program("codex")
    instructions = outside[1] / "instructions.md"
    instructions.write_text(BRIEF)
    less = [part for name in UNNEEDED for part in ("-c", f"features.{name}=false")]
    small = ("-c", f"model_instructions_file={instructions}", "-c", 'web_search="disabled"', *less)
    command = [*PROGRAM, "launch", "codex", "--url", demo.url, "--", *CODEX, *small, "Say hello."]
    events = [json.loads(line) for line in ran(command, outside, path).splitlines() if line.startswith("{")]
    kinds = [event["type"] for event in events]
    assert "turn.completed" in kinds and "turn.failed" not in kinds
    said = [event["item"]["text"] for event in events if event.get("item", {}).get("type") == "agent_message"]
    assert said and said[-1].strip()
    assert events[-1]["usage"]["input_tokens"] > 20 and events[-1]["usage"]["output_tokens"] > 0


def test_nothing_that_they_ask_for_is_refused(demo, program):
    """After the turns above: of what they sent, nothing but a look at `/` was answered with an error."""
    program("claude")
    lines = re.findall(r"127\.0\.0\.1 (\S+) (\S+) (\d{3}) ", demo.log.read_text())
    assert not [line for line in lines if int(line[2]) >= 400 and line[:2] != ("HEAD", "/")]
