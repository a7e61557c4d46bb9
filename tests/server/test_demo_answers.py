"""From body to frames with the demo pair, without a socket."""

import json

import pytest
from answers import CONTEXT

from dspark.decoding.events import RoundCommitted, Text
from dspark.decoding.request import Request, SpeculationOptions
from dspark.server.conversation import Conversation, answer_tokens
from dspark.server.dialects import chat, messages
from dspark.server.figures import Run, figures, reasoning_tokens, scores, usage
from dspark.server.parts import Ending

pytestmark = pytest.mark.real
TURN = {"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 16, "stream": True}


def answer(engine, dialect, body):
    order = dialect.parse(json.dumps(body).encode())
    talk = Conversation(engine.tokenizer)
    [prompt] = talk.prompts(order)
    budget = answer_tokens(len(prompt.ids), engine.loaded.context_window, order.max_tokens)
    speculation = SpeculationOptions(cap=2)
    request = Request(prompt.ids, budget, prompt.stop, speculation, sampling=order.sampling.over())
    splitter, reply = talk.splitter(order, prompt), dialect.Reply(order, CONTEXT)
    frames = reply.begin()
    for event in engine.generate(request):
        if isinstance(event, RoundCommitted) and event.logprobs:
            frames += reply.feed(scores(engine.tokenizer, event.logprobs))
        if isinstance(event, Text):
            frames += [frame for part in splitter.feed(event.text) for frame in reply.feed(part)]
    frames += [frame for part in splitter.finish(event.reason) for frame in reply.feed(part)]
    thought = reasoning_tokens(engine.tokenizer, event.tokens, splitter.reasoned)
    run = Run("dspark", cap=2)
    used = usage(event.statistics, run, thought)
    frames += reply.finish(Ending(splitter.reason, used, figures(event.statistics, run)))
    return frames, reply.whole(), event


def test_a_chat(demo_engine):
    frames, whole, finished = answer(demo_engine, chat, {**TURN, "logprobs": True, "top_logprobs": 2})
    content = "".join(data["choices"][0]["delta"].get("content", "") for _, data in frames[:-1])
    assert content == whole["choices"][0]["message"]["content"] == finished.text
    entries = whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == whole["usage"]["completion_tokens"] == len(finished.tokens), "A4"
    assert "".join(entry["token"] for entry in entries).startswith(content)
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["x_mlx_dspark"]["mode"] == "dspark" and whole["usage"]["prompt_tokens"] > 20


def test_tools_do_not_hold_the_text_back(demo_engine):
    tools = [{"name": "read", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}]
    frames, whole, finished = answer(demo_engine, messages, {**TURN, "tools": tools})
    deltas = [data["delta"]["text"] for name, data in frames if name == "content_block_delta"]
    assert len(deltas) > 1, "D2"
    assert "".join(deltas) == whole["content"][0]["text"] == finished.text
    assert whole["stop_reason"] == "max_tokens"
