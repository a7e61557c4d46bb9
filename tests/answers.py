"""Answers to render in every dialect, and readers of what was rendered."""

import json
from typing import Any

from dspark.server.dialects.reply import Context
from dspark.server.order import Order, Tool
from dspark.server.parts import Content, Ending, Part, Reasoning, ToolCall, Usage

CONTEXT = Context(id="abc", created=1_700_000_000, model="org/model-4bit", prompt_tokens=12, request_id="req-1")
USAGE = Usage(
    prompt_tokens=12,
    completion_tokens=7,
    cached_tokens=4,
    reasoning_tokens=2,
    ttft_seconds=0.5,
    total_seconds=1.5,
    prompt_tokens_per_second=16.0,
    generation_tokens_per_second=7.0,
)
FIGURES = {"mode": "dspark", "cap": 4, "accept_len": 1.7, "roofline_ratio": None}
TOOLS = (Tool("read", "reads", {"type": "object", "properties": {"path": {"type": "string"}}}), Tool("list"))
ANSWERS: dict[str, list[Part]] = {
    "nothing": [],
    "text": [Content("Hel"), Content("lo"), Content(" wörld")],
    "thought": [Reasoning("pl"), Reasoning("an"), Content("hi")],
    "thought only": [Reasoning("plan")],
    "call first": [ToolCall("call_1", "read", '{"path": "a"}'), Content("done")],
    "two calls": [
        Reasoning("plan"),
        Content("Look."),
        ToolCall("call_1", "read", '{"path": "a"}'),
        ToolCall("call_2", "list", "{}"),
    ],
    "late thought": [Content("a"), Reasoning("b"), Content("c"), ToolCall("call_1", "list", "{}"), Content("d")],
}


def ending(parts: list[Part], reason: Any = None) -> Ending:
    called = any(isinstance(part, ToolCall) for part in parts)
    return Ending(reason or ("tool_calls" if called else "stop"), USAGE, FIGURES)


def render(dialect: Any, parts: list[Part], order: Order | None = None, end: Ending | None = None) -> Any:
    """All frames of an answer, and the answer in one piece. Everything must be JSON."""
    reply = dialect.Reply(order or Order(tools=TOOLS), CONTEXT)
    frames = list(reply.begin())
    for part in parts:
        frames += reply.feed(part)
    frames = json.loads(json.dumps(frames + reply.finish(end or ending(parts))))
    return frames, json.loads(json.dumps(reply.whole()))


def joined(parts: list[Part], kind: type) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))
