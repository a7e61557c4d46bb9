"""The official SDKs' own types read every event and every answer."""

from functools import cache
from typing import Any

import pytest
from answers import ANSWERS, CONTEXT, USAGE, render
from pydantic import TypeAdapter

from dspark.errors import NotLoaded
from dspark.server.dialects import chat, completions, messages, models, responses
from dspark.server.order import Order, SamplingWishes, Tool
from dspark.server.parts import Content, Ending, Scores, TokenScore, ToolCall

openai = pytest.importorskip("openai", reason="the openai SDK is not installed (pip install -e '.[test]')")
anthropic = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed (pip install -e '.[test]')")

SCORED = Order(sampling=SamplingWishes(top_logprobs=1))
SCORES = Scores((TokenScore("a", b"a", -0.5, (TokenScore("b", b"b", -1.0),)),))


adapter = cache(TypeAdapter)


def read(kind: Any, value: dict[str, Any]) -> Any:
    """Validated as the SDK itself does not, so that a missing or mistyped field is an error."""
    return adapter(kind).validate_python(value)


@pytest.mark.parametrize("name", ANSWERS)
def test_chat(name):
    frames, whole = render(chat, ANSWERS[name], Order(include_usage=True))
    read(openai.types.chat.ChatCompletion, whole)
    for _, data in frames[:-1]:
        read(openai.types.chat.ChatCompletionChunk, data)
    read(openai.types.chat.ChatCompletionChunk, chat.Reply(Order(), CONTEXT).keepalive()[1])


def test_logprobs():
    frames, whole = render(chat, [SCORES, Content("a")], SCORED)
    assert read(openai.types.chat.ChatCompletion, whole).choices[0].logprobs.content[0].token == "a"
    for _, data in frames[:-1]:
        read(openai.types.chat.ChatCompletionChunk, data)
    whole = render(completions, [SCORES, Content("a")], SCORED)[1]
    assert read(openai.types.Completion, whole).choices[0].logprobs.tokens == ["a"]
    frames, _ = render(responses, [SCORES, Content("a")], SCORED)
    for _, data in frames:
        read(openai.types.responses.ResponseStreamEvent, data)


def test_completions():
    frames, whole = render(completions, [Content("a"), Content("b")])
    read(openai.types.Completion, whole)
    *pieces, last = [data for _, data in frames[:-1]]
    read(openai.types.Completion, last)
    for data in pieces:  # the SDK uses one type for both, in which a reason is required that no chunk but the last has
        assert data["choices"][0].pop("finish_reason") is None
        data["choices"][0]["finish_reason"] = "stop"
        read(openai.types.Completion, data)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_responses(name, reason):
    frames, whole = render(responses, ANSWERS[name], end=Ending(reason, USAGE))
    read(openai.types.responses.Response, whole)
    for kind, data in frames:
        assert read(openai.types.responses.ResponseStreamEvent, data).type == kind


def test_responses_with_calls_of_every_kind_and_failures():
    tools = (Tool("mcp__x", wire_name="x", namespace="mcp"), Tool("exec", custom=True, wire_name="exec"))
    parts = [ToolCall("call_1", "mcp__x", "{}"), ToolCall("call_2", "exec", '{"input": "ls"}')]
    frames, whole = render(responses, parts, Order(tools=tools))
    read(openai.types.responses.Response, whole)
    reply = responses.Reply(Order(tools=tools), CONTEXT)
    frames += [*reply.begin(), reply.keepalive(), *reply.fail(NotLoaded("none"))]
    for kind, data in frames:
        assert read(openai.types.responses.ResponseStreamEvent, data).type == kind


@pytest.mark.parametrize("name", ANSWERS)
def test_messages(name):
    frames, whole = render(messages, ANSWERS[name])
    read(anthropic.types.Message, whole)
    for kind, data in frames:
        assert read(anthropic.types.RawMessageStreamEvent, data).type == kind


def test_models():
    card = models.ModelCard("org/model-4bit", 1_700_000_000, 4096)
    for entry in models.listing(card)["data"]:
        assert read(openai.types.Model, entry).id == "org/model-4bit"
        assert read(anthropic.types.ModelInfo, entry).display_name == "model-4bit"
