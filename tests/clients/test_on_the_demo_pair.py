"""Each client on the demo pair: both SDKs, and Claude Code and Codex as `mlx-dspark launch` starts them.

That takes minutes on a CPU, so it is run only where `MLX_DSPARK_CLIENTS` names the folder with the programs of the
latter two (`node_modules/.bin`, after `npm install @anthropic-ai/claude-code @openai/codex`).
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from serveprocess import PROGRAM
from typed import check

VARIABLE = "MLX_DSPARK_CLIENTS"
PROGRAMS = os.environ.get(VARIABLE)
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not PROGRAMS, reason=f"{VARIABLE} names no folder with claude and codex (npm installs them)"),
]
SECONDS = 280
BRIEF = "You are brief."
# Their own prompts have thousands of tokens, which takes a CPU minutes; what is left has some hundreds.
CLAUDE = ("-p", "Say hello.", "--system-prompt", BRIEF, "--tools", "", "--output-format", "json")
CODEX = ("exec", "--json", "--skip-git-repo-check", "--ephemeral")
UNNEEDED = ("multi_agent", "goals", "shell_tool", "unified_exec", "plugins", "apps", "view_image")


def program(name):
    """The path of a client's program."""
    path = Path(PROGRAMS, name)
    if not os.access(path, os.X_OK):
        pytest.skip(f"no {name} in {PROGRAMS} ({VARIABLE})")
    return str(path)


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


def test_claude_code_completes_a_turn(demo, outside):
    path = program("claude")
    turn = json.loads(ran([*PROGRAM, "launch", "claude", "--url", demo.url, "--", *CLAUDE], outside, path))
    assert turn["subtype"] == "success" and turn["is_error"] is False and turn["result"].strip()
    (used,) = turn["modelUsage"].values()
    assert used["inputTokens"] + used["cacheReadInputTokens"] > 20 and used["outputTokens"] > 0
    assert used["contextWindow"] == demo.get("/health")["context_window"], "it knows the window"


def test_claude_code_completes_a_turn_in_the_environment_that_is_printed(demo, outside):
    path = program("claude")
    printed = ran([*PROGRAM, "launch", "claude", "--url", demo.url, "--print-env"], outside)
    script = f'{printed}\nexec "$@"'
    turn = json.loads(ran(["sh", "-c", script, "sh", path, *CLAUDE], outside))
    assert turn["subtype"] == "success" and turn["result"].strip()


def test_codex_completes_a_turn(demo, outside):
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


def test_nothing_that_they_ask_for_is_refused(demo):
    """After the turns above: of what they sent, nothing but a look at `/` was answered with an error."""
    program("claude")
    lines = re.findall(r"127\.0\.0\.1 (\S+) (\S+) (\d{3}) ", demo.log.read_text())
    assert not [line for line in lines if int(line[2]) >= 400 and line[:2] != ("HEAD", "/")]


def test_openai_s_dialects_answer_alike(demo):
    openai = pytest.importorskip("openai", reason="the openai SDK is not installed (pip install -e '.[test]')")
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="not-needed", max_retries=0, timeout=120) as client:
        messages = [{"role": "user", "content": "Name three colours."}]
        whole = check(client.chat.completions.create(model="m", messages=messages, max_tokens=16))
        text = whole.choices[0].message.content
        asked = {"model": "m", "input": "Name three colours.", "max_output_tokens": 16}
        assert check(client.responses.create(**asked)).output_text == text
        with client.responses.stream(**asked) as stream:
            assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == text
        assert len(text.split()) > 3 and whole.x_mlx_dspark["mode"] == "dspark"


def test_a_message_says_streamed_what_it_says_whole(demo):
    anthropic = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed (pip install -e '.[test]')")
    with anthropic.Anthropic(base_url=demo.url, api_key="not-needed", max_retries=0, timeout=120) as client:
        asked = {"model": "m", "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 16}
        whole = check(client.messages.create(**asked))
        with client.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == whole.content[0].text
        assert len(whole.content[0].text.split()) > 3 and whole.x_mlx_dspark["mode"] == "dspark"
