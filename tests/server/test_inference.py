"""The generation routes over HTTP, on a tiny pair."""

import json
import time

import pytest
from live import (
    GENERATION,
    TEMPLATE,
    Blocking,
    body_for,
    events,
    in_threads,
    served,
    streamed_text,
    text_of,
    write_target,
)
from wires import eventually

PROMPT = "Tell me a thing"
CHAT, COMPLETIONS, MESSAGES, RESPONSES = GENERATION


@pytest.mark.parametrize("path", GENERATION)
def test_a_stream_says_what_the_whole_answer_says(live, path):
    whole = live.post(path, body_for(path, PROMPT, max_tokens=40))
    frames = live.stream(path, body_for(path, PROMPT, max_tokens=40))
    assert len(text_of(path, whole)) > 10
    assert streamed_text(path, frames) == text_of(path, whole)


@pytest.mark.parametrize("path", GENERATION)
def test_the_path_answers_without_its_prefix_and_with_a_slash(live, path):
    expected = text_of(path, live.post(path, body_for(path, PROMPT, max_tokens=8)))
    for spelling in (path[3:], f"{path}/"):
        assert text_of(path, live.post(spelling, body_for(path, PROMPT, max_tokens=8))) == expected


@pytest.mark.parametrize("path", GENERATION)
def test_every_answer_tells_how_it_was_made(live, path):
    whole = live.post(path, body_for(path, PROMPT, max_tokens=24))["x_mlx_dspark"]
    frames = live.stream(path, body_for(path, PROMPT, max_tokens=24))
    streamed = [data for _, data in frames if data != "[DONE]" and "x_mlx_dspark" in json.dumps(data)][-1]
    streamed = streamed.get("response", streamed)["x_mlx_dspark"]
    for figures in (whole, streamed):
        assert (figures["mode"], figures["cap"], figures["completion_tokens"]) == ("dspark", 3, 24)
        assert figures["context_tokens"] == figures["prompt_tokens"] + 24
        assert 0 < figures["ttft_seconds"] < 60 and figures["target_forwards"] > 0
        assert figures["ceiling_tokens_per_sec"] is None, "the bandwidth was not measured, so there is no ceiling"
        assert figures["cold"] is False


@pytest.mark.parametrize("path", GENERATION)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_window_is_refused_in_the_words_that_agents_know(live, path, stream):
    """E15: before anything is read, and never in a stream."""
    refused = live.http.post(path, json=body_for(path, "x" * 3000, stream=stream))
    error = refused.json()["error"]
    assert refused.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("prompt is too long: 30") and "maximum" in error["message"]
    if path == MESSAGES:
        assert refused.json()["type"] == "error" and refused.json()["request_id"]


def test_an_answer_may_fill_the_window_and_no_more(live):
    """E15: max_tokens beyond the window is shortened."""
    answer = live.post(COMPLETIONS, {"prompt": "x" * 2040, "max_tokens": 99})
    assert answer["usage"]["total_tokens"] == 2048 and answer["choices"][0]["finish_reason"] == "length"


def test_several_answers_are_told_apart(live):
    """D14: n with and without a stream, each choice with its own index, end and seed."""
    body = body_for(CHAT, PROMPT, max_tokens=12, n=3, temperature=1, seed=5)
    whole = live.post(CHAT, body)
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2] and len(set(texts)) == 3
    streamed = ["", "", ""]
    ends = []
    for _, data in live.stream(CHAT, body):
        for choice in data["choices"] if data != "[DONE]" else ():
            streamed[choice["index"]] += choice["delta"].get("content") or ""
            ends += [choice["index"]] if choice["finish_reason"] else []
    assert streamed == texts and ends == [0, 1, 2]
    assert texts[0] == live.post(CHAT, {**body, "n": 1})["choices"][0]["message"]["content"]


def test_several_prompts_have_their_own_answers(live):
    """E18: lists of texts and of token ids, echoed where that is asked for."""
    one, two = (live.post(COMPLETIONS, {"prompt": p, "max_tokens": 8})["choices"][0]["text"] for p in ("ab", "ba"))
    both = live.post(COMPLETIONS, {"prompt": ["ab", "ba"], "max_tokens": 8})["choices"]
    assert [choice["text"] for choice in both] == [one, two]
    echoed = live.post(COMPLETIONS, {"prompt": ["ab", "ba"], "max_tokens": 8, "echo": True})["choices"]
    assert [choice["text"] for choice in echoed] == [f"ab{one}", f"ba{two}"]


@pytest.mark.parametrize("stream", [False, True])
def test_usage_is_told_once_and_only_where_it_is_asked_for(live, stream):
    """D5, X3."""
    frames = live.stream(CHAT, body_for(CHAT, PROMPT, max_tokens=4, stream_options={"include_usage": True}))
    chunks = [data for _, data in frames if data != "[DONE]"]
    counted = [chunk for chunk in chunks if chunk.get("usage")]
    assert counted == [chunks[-1]] and chunks[-1]["choices"] == []
    assert counted[0]["usage"]["completion_tokens"] == 4
    silent = live.stream(CHAT, body_for(CHAT, PROMPT, max_tokens=4))
    assert not any("usage" in data for _, data in silent if data != "[DONE]")


def test_a_stop_string_is_named_where_a_dialect_has_a_word_for_it(live):
    text = text_of(MESSAGES, live.post(MESSAGES, body_for(MESSAGES, PROMPT, max_tokens=40)))
    word = next(text[at : at + 2] for at in range(4, len(text)) if text[at : at + 2].isascii())
    answer = live.post(MESSAGES, body_for(MESSAGES, PROMPT, max_tokens=40, stop_sequences=["never said", word]))
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", word)
    assert text_of(MESSAGES, answer) == text[: text.index(word)]
    chat = live.post(CHAT, body_for(CHAT, PROMPT, max_tokens=40, stop=word))
    assert chat["choices"][0]["finish_reason"] == "stop"


def test_log_probabilities_cover_every_token(live):
    """A4: one entry a token, streamed or not, whatever was drafted."""
    body = body_for(CHAT, PROMPT, max_tokens=11, logprobs=True, top_logprobs=2)
    whole = live.post(CHAT, body)
    entries = whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == whole["usage"]["completion_tokens"] == 11
    streamed = [
        entry
        for _, data in live.stream(CHAT, body)
        if data != "[DONE]"
        for choice in data["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert [one["token"] for one in streamed] == [one["token"] for one in entries]


def test_the_count_of_a_prompt_is_the_prompts(live):
    """F12."""
    body = body_for(MESSAGES, PROMPT, system="Be brief.")
    counted = live.post("/v1/messages/count_tokens", body)["input_tokens"]
    usage = live.post(MESSAGES, {**body, "max_tokens": 2})["usage"]
    # Of an earlier prompt's start, some may have been remembered.
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


READ = {"name": "Read", "description": "d", "input_schema": {"type": "object"}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
NOTE = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}


@pytest.mark.parametrize(
    "fields",
    [
        {"system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]},
        {"tools": [READ]},
        {"tools": [READ], "tool_choice": {"type": "none"}},
        {"messages": [{"role": "user", "content": [NOTE, {"type": "text", "text": "sum up"}]}]},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"messages": [{"role": "user", "content": [PICTURE]}]},
        {"messages": []},
    ],
)
def test_whatever_is_in_a_body_is_counted_as_it_is_read(live, fields):
    """F12: system, tools, documents and thoughts count; what the real request is refused for is refused."""
    body = {**body_for(MESSAGES, PROMPT), **fields}
    counted = live.http.post(f"{MESSAGES}/count_tokens", json=body)
    real = live.http.post(MESSAGES, json={**body, "max_tokens": 1})
    assert counted.status_code == real.status_code
    if real.status_code != 200:
        assert counted.json()["error"]["message"] == real.json()["error"]["message"]
        return
    used = real.json()["usage"]
    assert counted.json()["input_tokens"] == used["input_tokens"] + used["cache_read_input_tokens"]


def test_small_calls_beside_a_conversation_are_answered_and_do_not_push_it_out(live):
    """F16: a quota probe and titles for another model's name, while a long answer runs and between two turns."""
    turns = [{"role": "user", "content": "The main conversation. " * 30}]
    long = {"messages": turns, "max_tokens": 60}

    def small(text):
        ask = {"model": "claude-haiku-4-5", "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
        return live.post(MESSAGES, ask)

    first, probe = in_threads(lambda: live.post(MESSAGES, long), lambda: small("quota"))
    assert (probe["model"], probe["stop_reason"], probe["usage"]["output_tokens"]) == ("tiny-target", "max_tokens", 1)
    for at in range(10):
        small(f"Title {at}, in five words")
    turns += [{"role": "assistant", "content": text_of(MESSAGES, first)}, {"role": "user", "content": "And then?"}]
    used = live.post(MESSAGES, {**long, "max_tokens": 2})["usage"]
    assert used["cache_read_input_tokens"] > 600


@pytest.fixture(scope="module")
def thinker(tmp_path_factory, own_home):
    """A server with a model whose template opens a thought."""
    template = TEMPLATE.replace("<|assistant|>", "<|assistant|><think>\n")
    folder = write_target(tmp_path_factory.mktemp("thinker") / "m", template=template, marks=("<think>", "</think>"))
    with served(model=folder, drafter="none", mode="lookup") as running:
        yield running


def thoughts_and_text(path, answer):
    """Of a whole answer, with how it says that it was cut."""
    if path == CHAT:
        (choice,) = answer["choices"]
        message = choice["message"]
        return message.get("reasoning_content") or "", message["content"] or "", choice["finish_reason"] == "length"
    if path == MESSAGES:
        thoughts = "".join(block.get("thinking", "") for block in answer["content"])
        return thoughts, text_of(path, answer), answer["stop_reason"] == "max_tokens"
    found = {"reasoning": "", "message": ""}
    for item in answer["output"]:
        found[item["type"]] += "".join(part["text"] for part in item["content"])
    return found["reasoning"], found["message"], answer["incomplete_details"] == {"reason": "max_output_tokens"}


def streamed_thoughts_and_text(path, frames):
    """The same, of a stream."""
    thoughts = text = ""
    cut = False
    for name, data in frames:
        if path == CHAT and data != "[DONE]":
            (choice,) = data["choices"]
            thoughts += choice["delta"].get("reasoning_content") or ""
            text += choice["delta"].get("content") or ""
            cut = cut or choice["finish_reason"] == "length"
        elif path == MESSAGES:
            delta = data.get("delta", {})
            thoughts, text = thoughts + delta.get("thinking", ""), text + delta.get("text", "")
            cut = cut or delta.get("stop_reason") == "max_tokens"
        elif path == RESPONSES:
            thoughts += data["delta"] if name == "response.reasoning_text.delta" else ""
            text += data["delta"] if name == "response.output_text.delta" else ""
            cut = name == "response.incomplete"
    return thoughts, text, cut


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_an_answer_cut_inside_a_thought_is_all_thought(thinker, path):
    """I1: never text, never both, streamed or not."""
    body = body_for(path, PROMPT, max_tokens=20)
    whole = thoughts_and_text(path, thinker.post(path, body))
    assert whole[0] and whole[1:] == ("", True)
    assert streamed_thoughts_and_text(path, thinker.stream(path, body)) == whole


def test_a_thought_has_a_block_of_its_own_with_a_signature(thinker):
    """F4: and the text comes after it, in another."""
    body = body_for(MESSAGES, PROMPT, max_tokens=40, thinking={"type": "enabled", "budget_tokens": 8})
    thought, text = thinker.post(MESSAGES, body)["content"]
    assert (thought["type"], text["type"]) == ("thinking", "text") and thought["signature"] and text["text"]
    frames = thinker.stream(MESSAGES, body)
    kinds = {data["index"]: data["content_block"]["type"] for name, data in frames if name == "content_block_start"}
    assert kinds == {0: "thinking", 1: "text"}
    deltas = [(data["index"], data["delta"]["type"]) for name, data in frames if name == "content_block_delta"]
    assert set(deltas) == {(0, "thinking_delta"), (0, "signature_delta"), (1, "text_delta")}
    assert streamed_thoughts_and_text(MESSAGES, frames)[:2] == (thought["thinking"], text["text"])


@pytest.mark.parametrize("model", ["gpt-4o", "", None, "someone/other-repo", "../../etc"])
def test_any_model_name_is_answered_by_the_loaded_one_which_is_named(live, model):
    """E4: no download, no look at a path."""
    assert live.post(CHAT, {**body_for(CHAT, PROMPT, max_tokens=1), "model": model})["model"] == "tiny-target"


def test_the_listing_of_models(live):
    """E16: the model by an id, also under the escaped one."""
    (listed,) = live.get("/v1/models")["data"]
    assert (listed["id"], listed["context_window"], listed["display_name"]) == ("tiny-target", 2048, "tiny-target")
    assert live.get("/v1/models/tiny%2Dtarget") == listed
    assert live.http.get("/v1/models/other/one").json()["error"]["type"] == "not_found_error"


def test_defaults_come_from_the_request_then_the_flags_then_the_model(tmp_path, own_home):
    """Contract section 3: the order of defaults."""
    folder = write_target(tmp_path / "sampled")
    (tmp_path / "sampled" / "generation_config.json").write_text('{"temperature": 1.5, "do_sample": true}')
    ask = {"prompt": PROMPT, "max_tokens": 16, "seed": 3}

    def said(live, **fields):
        return text_of(COMPLETIONS, live.post(COMPLETIONS, {**ask, **fields}))

    plain = {"model": folder, "drafter": "none", "mode": "baseline", "warmup": False}
    with served(**plain) as live:
        hot, greedy, mild = said(live), said(live, temperature=0), said(live, temperature=0.3)
        assert len({hot, greedy, mild}) == 3
    with served(**plain, default_temperature=0.3) as live:
        assert said(live) == mild and said(live, temperature=1.5) == hot


def test_the_length_of_an_answer_by_default_and_at_most(pair, own_home):
    with served(model=pair[0], drafter="none", default_max_tokens=5, max_tokens_cap=9) as live:
        for asked, got in ((None, 5), (7, 7), (10**9, 9)):
            answer = live.post(COMPLETIONS, {"prompt": "abc", "max_tokens": asked})
            assert answer["usage"]["completion_tokens"] == got
        assert live.get("/health")["max_output_tokens"] == 9


def test_the_first_answer_without_warm_up_is_cold(pair, own_home):
    """B18: and no other."""
    with served(model=pair[0], drafter="none", warmup=False) as live:
        cold = [live.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 2})["x_mlx_dspark"]["cold"] for _ in range(2)]
    assert cold == [True, False]


def test_answers_to_the_same_seed_are_the_same_and_to_none_are_not(live):
    """A25: requests beside one another change nothing either."""
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 1}

    def said(**fields):
        return text_of(COMPLETIONS, live.post(COMPLETIONS, {**body, **fields}))

    alone = said(seed=1)
    beside = in_threads(*(lambda seed=seed: said(seed=seed) for seed in (1, 2, 1)))
    assert beside[0] == beside[2] == alone != beside[1]
    assert said() != said()


@pytest.mark.parametrize(
    ("path", "kept_alive"),
    [
        (CHAT, lambda name, data: data["choices"][0]["delta"] == {}),
        (COMPLETIONS, lambda name, data: data["choices"][0]["text"] == ""),
        (MESSAGES, lambda name, data: name == "ping" and data["type"] == "ping"),
        (RESPONSES, lambda name, data: name == "response.in_progress"),
    ],
)
def test_silence_is_filled_by_frames_that_clients_count(pair, own_home, monkeypatch, path, kept_alive):
    """D3: while it waits for its turn, and never after its end."""
    monkeypatch.setenv("MLX_DSPARK_STREAM_KEEPALIVE_S", "0.05")
    with served(model=pair[0], drafter="none") as live:
        gate = Blocking()
        live.app.worker.submit(gate)
        with live.http.stream("POST", path, json=body_for(path, PROMPT, max_tokens=3, stream=True)) as response:
            frames = events(response)
            seen = [next(frames) for _ in range(6)]
            gate.release.set()
            seen += list(frames)
    alive = [at for at, (name, data) in enumerate(seen) if data != "[DONE]" and kept_alive(name, data)]
    assert len(alive) >= 3 and max(alive) < len(seen) - 1


def test_a_full_queue_is_told_with_a_time_to_come_back(pair, own_home):
    """J6: who comes again and again does not pile up."""
    with served(model=pair[0], drafter="none") as live:
        gate = Blocking()
        live.app.worker.submit(gate)
        live.app.worker.waiting_limit = 0
        refused = live.http.post(CHAT, json=body_for(CHAT, PROMPT))
        gate.release.set()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["type"] == "overloaded_error"


def test_without_a_model_generation_says_so_and_all_else_answers(own_home):
    """J8: no_model, with a time to come back."""
    with served(load=False) as live:
        for path in (*GENERATION, "/v1/messages/count_tokens"):
            refused = live.http.post(path, json=body_for(path, PROMPT))
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
            assert "no model is loaded" in refused.json()["error"]["message"]
        assert live.get("/v1/models")["data"] == []
        for route in ("/health", "/metrics", "/calibration", "/rounds", "/doctor", "/admin/status", "/admin/models"):
            live.get(route)
        assert live.get("/machine")["model"] is None
        assert live.get("/admin/integrations")["model"] is None


def test_a_malformed_body_is_refused_before_a_stream_begins(live):
    """D9, X6: whatever the body says of streaming."""
    for raw in (b'{"stream": true, "messages": [', b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}'):
        refused = live.http.post(CHAT, content=raw, headers={"content-type": "application/json"})
        assert refused.status_code in (400, 422) and refused.json()["error"]["message"]


def test_first_token_and_total_are_counted_from_the_arrival(pair, own_home):
    with served(model=pair[0], drafter="none") as live:
        gate = Blocking()
        live.app.worker.submit(gate)

        def release():
            time.sleep(0.3)
            gate.release.set()

        answer, _ = in_threads(
            lambda: live.post(CHAT, body_for(CHAT, PROMPT, max_tokens=4)),
            release,
        )
    used = answer["usage"]
    assert 0.25 < used["time_to_first_token"] <= used["total_time"]
    assert answer["x_mlx_dspark"]["prefill_seconds"] < used["time_to_first_token"]


def test_nobody_overtakes_whatever_the_length_of_his_prompt(live):
    """The policy of the queue: a long prompt holds up a short one behind it, and no later one holds up either."""
    gate, order = Blocking(), []
    live.app.worker.submit(gate)
    assert eventually(lambda: live.app.worker.busy)
    asked = {"long": "x" * 300, "short": "abc", "later and long": "y" * 300, "last": "b"}

    def ask(at, name):
        assert eventually(lambda: live.app.worker.waiting == at)
        live.post(
            COMPLETIONS, {"prompt": asked[name], "max_tokens": 2}, headers={"x-request-id": name.replace(" ", "-")}
        )

    def let_go():
        assert eventually(lambda: live.app.worker.waiting == len(asked))
        gate.release.set()

    in_threads(*(lambda at=at, name=name: ask(at, name) for at, name in enumerate(asked)), let_go)
    for one in live.get("/rounds?limit=32")["rounds"]:
        if one["req"] not in order:
            order.append(one["req"])
    assert order[-4:] == [name.replace(" ", "-") for name in asked]
