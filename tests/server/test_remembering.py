"""What a server remembers of prompts: told in every dialect, in step with templates, and kept on disk."""

import os
import signal
import subprocess
import sys
import time

import families
import httpx
import pytest
from bytewise import bytewise
from live import GENERATION, Blocking, body_for, in_threads, served, text_of
from wires import eventually

from dspark.prefix.disk import DiskTier

CHAT, COMPLETIONS, MESSAGES, RESPONSES = GENERATION
LONG = "A long story of a disk that was round, and of a ball that was not. " * 5
# Opens a thought for the answer, and forgets it once the answer is history.
FORGETFUL = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
PLAIN = {"drafter": "none", "mode": "baseline", "warmup": False}


def told_cached(path, frames_or_answer):
    """Cached tokens as the dialect itself and as `x_mlx_dspark` tell them; and the prompt's length."""
    if isinstance(frames_or_answer, dict):
        answer = frames_or_answer
    else:
        data = [data for _, data in frames_or_answer if data != "[DONE]"]
        if path == RESPONSES:
            answer = data[-1]["response"]
        else:
            usage = [one["usage"] for one in data if one.get("usage")][-1]
            answer = {
                "usage": usage,
                "x_mlx_dspark": [one for one in data if "x_mlx_dspark" in one][-1]["x_mlx_dspark"],
            }
    usage, figures = answer["usage"], answer["x_mlx_dspark"]
    if path == MESSAGES:
        own = usage["cache_read_input_tokens"]
        assert usage["input_tokens"] == figures["prompt_tokens"] - own
    else:
        details = "input_tokens_details" if path == RESPONSES else "prompt_tokens_details"
        own = usage[details]["cached_tokens"]
    return own, figures["cached_tokens"], figures["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", GENERATION)
def test_what_was_not_read_again_is_told(live, path, stream):
    prompt = f"{path} {stream} asks twice"
    body = body_for(path, prompt, max_tokens=3)
    if stream and path in (CHAT, COMPLETIONS):
        body["stream_options"] = {"include_usage": True}
    live.post(path, body_for(path, prompt, max_tokens=3))
    own, figures, prompt_tokens = told_cached(path, live.stream(path, body) if stream else live.post(path, body))
    assert own == figures == prompt_tokens - 1


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """A model with recurrent layers, whose template renders the end of a prompt otherwise a turn later."""
    folder = tmp_path_factory.mktemp("hybrid") / "hybrid"
    tokenizer = bytewise()
    with pytest.MonkeyPatch.context() as patch:
        wide = {"vocab_size": 304, "max_position_embeddings": 2048}
        patch.setattr(families, "family", families.family.__wrapped__)  # the one kept is as the others have it
        patch.setitem(families.FAMILIES, "qwen3_5", {**families.FAMILIES["qwen3_5"], **wide})
        families.write_family(folder, "qwen3_5")
    tokenizer._tokenizer.chat_template = FORGETFUL
    tokenizer._tokenizer.save_pretrained(folder)
    return str(folder)


def test_c2_a_model_with_recurrent_state_goes_on_where_the_template_does(hybrid, own_home):
    """The prompt's own end, an opened thought, is gone a turn later: a checkpoint lies before it."""
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": LONG}]
    with served(model=hybrid, **PLAIN) as live:
        first = live.post(CHAT, {"messages": turns, "max_tokens": 8})
        answer = {"role": "assistant", "content": text_of(CHAT, first)}
        following = {"messages": [*turns, answer, {"role": "user", "content": "And then?"}], "max_tokens": 8}
        warm = live.post(CHAT, following)
        other = live.post(CHAT, {"messages": [turns[0], {"role": "user", "content": "Hm?"}], "max_tokens": 1})
        live.post("/admin/load?wait=true", {"model": hybrid, **PLAIN})
        cold = live.post(CHAT, following)
    tail = len("<think>\n") + 1
    read = first["x_mlx_dspark"]["prompt_tokens"]
    assert read - tail <= warm["x_mlx_dspark"]["cached_tokens"] < read
    assert other["x_mlx_dspark"]["cached_tokens"] >= len("<|system|>Be brief.\n"), "the same system prompt"
    assert cold["x_mlx_dspark"]["cached_tokens"] == 0
    assert text_of(CHAT, warm) == text_of(CHAT, cold)


def test_a_restarted_server_goes_on_from_disk(pair, own_home, tmp_path):
    """Everything is written as the server ends, idle or not."""
    kept = {"model": pair[0], "prefix_cache_dir": str(tmp_path), **PLAIN}
    with served(**kept) as live:
        first = live.post(CHAT, body_for(CHAT, LONG, max_tokens=8))
    turns = [{"role": "user", "content": LONG}, {"role": "assistant", "content": text_of(CHAT, first)}]
    following = {"messages": [*turns, {"role": "user", "content": "And then?"}], "max_tokens": 8}
    with served(**kept) as live:
        warm = live.post(CHAT, following)
        disk = live.get("/metrics")["prefix_cache"]["disk"]
    with served(**{**kept, "prefix_cache": False}) as live:
        cold = live.post(CHAT, following)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 1
    assert (disk["read"], disk["errors"], disk["ignored"]) == (1, 0, 0)
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert text_of(CHAT, warm) == text_of(CHAT, cold)


def test_an_idle_server_writes_what_it_read(pair, own_home, tmp_path, monkeypatch):
    monkeypatch.setattr("dspark.server.worker.IDLE_SECONDS", 0.01)
    with served(model=pair[0], prefix_cache_dir=str(tmp_path), **PLAIN) as live:
        live.post(COMPLETIONS, {"prompt": LONG, "max_tokens": 1})
        assert eventually(lambda: live.get("/metrics")["prefix_cache"]["disk"]["written"] == 1)
        assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_who_waits_is_answered_before_anything_is_written(pair, own_home, tmp_path, monkeypatch):
    """Off the hot path: nothing is written while there is something to answer."""
    monkeypatch.setattr("dspark.server.worker.IDLE_SECONDS", 0.01)
    with served(model=pair[0], prefix_cache_dir=str(tmp_path), **PLAIN) as live:
        answered, write = [], DiskTier.write

        def watched(tier, slot):
            answered.append(live.app.telemetry.counters()["requests"]["completed"])
            return write(tier, slot)

        monkeypatch.setattr(DiskTier, "write", watched)
        gate = Blocking()
        live.app.worker.submit(gate)

        def ask():
            live.post(COMPLETIONS, {"prompt": LONG, "max_tokens": 1})

        def let_go():
            assert eventually(lambda: live.app.worker.waiting == 3)
            gate.release.set()

        in_threads(ask, ask, ask, let_go)
        assert eventually(lambda: answered) and answered[0] == 3


@pytest.mark.skipif("MLX_DSPARK_FULL_MATRIX" not in os.environ, reason="starts three processes")
def test_sigterm_keeps_what_was_read_and_kill_minus_9_does_no_harm(pair, tmp_path):
    """Acceptance 3 of the prefix cache, over HTTP."""
    kept = tmp_path / "kept"

    def started():
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from dspark.commands.entry import main; main()", "serve", "--port", "0"),
                *("--model", pair[0], "--drafter", "none", "--no-warmup", "--prefix-cache-dir", str(kept)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "MLX_DSPARK_HOME": str(tmp_path)},
        )
        url = process.stdout.readline().split()[-1]
        deadline = time.monotonic() + 60
        while httpx.get(f"{url}/health", trust_env=False).json()["status"] != "ok":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process, url

    def ask(url, prompt):
        body = {"prompt": prompt, "max_tokens": 8}
        answer = httpx.post(f"{url}{COMPLETIONS}", json=body, trust_env=False, timeout=30).json()
        return answer["x_mlx_dspark"]["cached_tokens"], answer["choices"][0]["text"]

    process, url = started()
    _, first = ask(url, LONG)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    longer = f"{LONG}{first} And then?"
    process, url = started()
    cached, warm = ask(url, longer)
    assert cached >= len(LONG)
    ask(url, longer * 3)
    process.kill()
    process.wait()
    process, url = started()
    try:
        again, text = ask(url, longer)
    finally:
        process.kill()
        process.wait()
    with served(model=pair[0], prefix_cache=False, **PLAIN) as live:
        cold = live.post(COMPLETIONS, {"prompt": longer, "max_tokens": 8})["choices"][0]["text"]
    assert again >= len(LONG) and text == warm == cold
