"""Anthropic messages."""

import json

import pytest
from answers import ANSWERS, CONTEXT, FIGURES, TOOLS, USAGE, joined, render
from chatting import HERMES, THINK, chat_tokenizer

from dspark.errors import BadRequest, NotLoaded
from dspark.server.conversation import Conversation
from dspark.server.dialects import messages
from dspark.server.order import Call, Message, Order, ResponseFormat, Thinking, ToolChoice
from dspark.server.parts import Content, Ending, Reasoning, ToolCall

X1 = {
    "model": "claude-haiku-4-5",
    "max_tokens": 32000,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.240; cc_entrypoint=cli; cch=aaaa1;"},
        {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": []},
    "metadata": {"user_id": "u"},
    "tools": [
        {
            "name": "Read",
            "description": "d",
            "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        }
    ],
    "messages": [
        {"role": "user", "content": "read a.txt"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": ""},
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a.txt"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "123"}]},
                {"type": "text", "text": "go on"},
            ],
        },
        {"role": "system", "content": "operator note"},
        {"role": "user", "content": [{"type": "tool_addition", "tools": []}, {"type": "text", "text": "continue"}]},
    ],
}


def parse(*turns, **fields):
    body = {"messages": list(turns) or [{"role": "user", "content": "hi"}], **fields}
    return messages.parse(json.dumps(body).encode())


def refused(*turns, **fields):
    with pytest.raises(BadRequest) as caught:
        parse(*turns, **fields)
    return caught.value.status, caught.value.param, str(caught.value)


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def result(content=..., **fields):
    said = {} if content is ... else {"content": content}
    return {"type": "tool_result", "tool_use_id": "t1", **said, **fields}


def image():
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}


def test_x1_a_turn_of_claude_code():
    """F6, F7, F9, F10"""
    order = messages.parse(json.dumps(X1).encode())
    assert order.messages == (
        Message("system", "You are a coding agent."),
        Message("user", "read a.txt"),
        Message("assistant", "", "t", (Call("toolu_1", "Read", '{"path": "a.txt"}'),)),
        Message("tool", "123", answers="toolu_1", name="Read"),
        Message("user", "go on"),
        Message("system", "operator note"),
        Message("user", "continue"),
    )
    assert (order.thinking, order.max_tokens, order.stream) == (Thinking(None, "high", None), 32000, True)
    assert [tool.name for tool in order.tools] == ["Read"]


def test_x1_another_attribution_line_makes_the_same_prompt():
    """C3"""
    other = json.loads(json.dumps(X1).replace("aaaa1", "bbbb2"))
    assert messages.parse(json.dumps(other).encode()) == messages.parse(json.dumps(X1).encode())
    talk = Conversation(chat_tokenizer(HERMES, tokens=THINK, family="json_tools"))
    [prompt] = talk.prompts(messages.parse(json.dumps(X1).encode()))
    assert "billing" not in prompt.text
    assert "<|im_start|>user\noperator note\n\ncontinue<|im_end|>" in prompt.text


def test_c3_the_line_is_dropped_from_system_texts_only():
    line = "x-anthropic-billing-header: cch=1;"
    order = parse({"role": "user", "content": f"what is {line}\n{line}"}, system=f"{line}\nBe brief.\nx {line}")
    assert order.messages == (
        Message("system", f"Be brief.\nx {line}"),
        Message("user", f"what is {line}\n{line}"),
    )
    assert parse(system=[{"type": "text", "text": line}]).messages == (Message("user", "hi"),)


@pytest.mark.parametrize(
    ("effort", "known"),
    [
        ("high", "high"),
        ("max", "max"),
        (" high ", "high"),
        ("XHIGH", "xhigh"),
        ("ultracode", None),
        (3, None),
        (None, None),
    ],
)
def test_f6_efforts_as_agents_write_them(effort, known):
    assert parse(output_config={"effort": effort}).thinking.effort == known


def test_f6_thinking():
    assert parse(thinking={"type": "enabled", "budget_tokens": 2048}).thinking == Thinking(True, None, 2048)
    assert parse(thinking={"type": "disabled"}, output_config={"effort": "high"}).thinking.enabled is False
    assert parse(thinking={"type": "adaptive"}).thinking == Thinking()


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (result("r"), "r"),
        (result([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "a\nb"),
        (result([]), ""),
        (result(), ""),
        (result("broke", is_error=True), "Error: broke"),
        (result([image(), {"type": "text", "text": "a"}]), f"{messages.UNSEEN}\na"),
        (result([{"type": "novelty"}, {"type": "text", "text": "a"}]), "a"),
    ],
)
def test_f9_every_shape_of_a_tool_result(block, text):
    assert parse(user(block)).messages == (Message("tool", text, answers="t1"),)


def test_f9_results_and_text_keep_their_order():
    order = parse(
        user({"type": "text", "text": "x"}, result("1"), result("2", tool_use_id="t2"), {"type": "text", "text": "y"})
    )
    assert [(message.role, message.content) for message in order.messages] == [
        ("user", "x"),
        ("tool", "1"),
        ("tool", "2"),
        ("user", "y"),
    ]


def test_f10_thoughts_in_the_history():
    turn = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "plan", "signature": "anything"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "hi"},
        ],
    }
    assert parse({"role": "user", "content": "a"}, turn).messages[1] == Message("assistant", "hi", "plan")


@pytest.mark.parametrize("kind", ["image", "document"])
def test_e6_what_is_no_text_is_refused_by_name(kind):
    status, _, message = refused(user({"type": kind, "source": {"type": "base64", "data": "x"}}))
    assert status == 400 and f"{kind} cannot be read" in message


def test_a_document_of_text_is_read():
    block = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
    assert parse(user(block)).messages == (Message("user", "words"),)


def test_f13_tool_choices():
    tools = [{"name": "read", "input_schema": {"type": "object"}}, {"name": "search", "type": "web_search_20250305"}]
    assert [tool.name for tool in parse(tools=tools).tools] == ["read"]
    assert parse(tools=tools, tool_choice={"type": "none"}).offered == ()
    assert parse(tools=tools, tool_choice={"type": "any"}).tool_choice == ToolChoice("required")
    named = parse(tools=tools, tool_choice={"type": "tool", "name": "read", "disable_parallel_tool_use": True})
    assert named.tool_choice == ToolChoice("required", "read") and not named.parallel_tool_calls
    assert refused(tools=tools, tool_choice={"type": "tool", "name": "x"})[:2] == (400, "tool_choice")
    assert parse(tools=[], tool_choice={"type": "any"}).tool_choice == ToolChoice()
    assert refused(tools=tools, tool_choice={"type": "some"})[:2] == (422, "tool_choice")


def test_f15_no_limit_is_tolerated():
    assert parse().max_tokens is None
    assert refused(max_tokens=0) == (422, "max_tokens", "body -> max_tokens: Input should be greater than 0")


def test_stop_sequences_of_any_number():
    """O7: as long as they are not longer than any answer."""
    assert parse(stop_sequences=["a", "", "b", "c", "d", "e", "a"]).stop == ("a", "b", "c", "d", "e")
    assert len(parse(stop_sequences=[f"{at:05}" for at in range(13_000)]).stop) == 13_000
    assert refused(stop_sequences=[f"{at:06}" for at in range(11_000)])[:2] == (422, "stop_sequences")


def test_a_format_of_the_answer():
    schema = {"type": "object"}
    wanted = parse(output_config={"format": {"type": "json_schema", "schema": schema}}).response_format
    assert wanted == ResponseFormat(schema, strict=True)


def test_unknown_roles_and_empty_conversations():
    assert refused({"role": "tool", "content": "x"})[0] == 400
    with pytest.raises(BadRequest) as caught:
        messages.parse(b'{"messages": []}')
    assert (caught.value.status, caught.value.param) == (422, "messages")


def replay(frames):
    """The message that a strict client builds, checking the order of events on the way."""
    kinds = [name for name, _ in frames]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert all(name == data["type"] for name, data in frames)
    built, open_block, pieces = [], None, ""
    for name, data in frames[1:-2]:
        if name == "content_block_start":
            assert open_block is None and data["index"] == len(built)
            open_block, pieces = dict(data["content_block"]), ""
        elif name == "content_block_delta":
            assert open_block is not None and data["index"] == len(built)
            delta = data["delta"]
            kind = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}[
                open_block["type"]
            ]
            assert delta["type"] in (kind, "signature_delta")
            if delta["type"] == "signature_delta":
                open_block["signature"] = delta["signature"]
            else:
                pieces += delta[
                    {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}[open_block["type"]]
                ]
        else:
            assert name == "content_block_stop" and data["index"] == len(built)
            if open_block["type"] == "tool_use":
                open_block["input"] = json.loads(pieces)
            else:
                open_block[open_block["type"]] = pieces
            built.append(open_block)
            open_block = None
    assert open_block is None
    return built


@pytest.mark.parametrize("name", ANSWERS)
def test_f1_blocks_in_order_one_at_a_time_and_as_in_the_whole(name):
    """F1, F4"""
    parts = ANSWERS[name]
    frames, whole = render(messages, parts)
    assert replay(frames) == whole["content"]
    texts = "".join(block["text"] for block in whole["content"] if block["type"] == "text")
    thoughts = "".join(block["thinking"] for block in whole["content"] if block["type"] == "thinking")
    assert (texts, thoughts) == (joined(parts, Content), joined(parts, Reasoning))
    assert all(block["signature"] for block in whole["content"] if block["type"] == "thinking")


def test_f3_the_first_frame():
    reply = messages.Reply(Order(), CONTEXT)
    [(name, start)] = reply.begin()
    assert name == "message_start"
    assert start["message"] == {
        "id": "msg_abc",
        "type": "message",
        "role": "assistant",
        "model": "org/model-4bit",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 12,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }


def test_calls_become_blocks():
    whole = render(messages, ANSWERS["two calls"])[1]
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole["content"][2] == {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}}
    assert whole["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("reason", "sequence", "told"),
    [
        ("stop", None, "end_turn"),
        ("length", None, "max_tokens"),
        ("tool_calls", None, "tool_use"),
        ("stop_sequence", "END", "stop_sequence"),
    ],
)
def test_how_it_ended(reason, sequence, told):
    frames, whole = render(messages, [Content("x")], end=Ending(reason, USAGE, FIGURES, sequence))
    usage = {
        "input_tokens": 8,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 7,
    }
    [_, delta], [_, stop] = frames[-2:]
    assert delta["delta"] == {"stop_reason": told, "stop_sequence": sequence}
    assert delta["usage"] == whole["usage"] == usage
    assert (whole["stop_reason"], whole["stop_sequence"]) == (told, sequence)
    assert stop["x_mlx_dspark"] == whole["x_mlx_dspark"] == FIGURES


def test_i1_cut_inside_a_thought():
    frames, whole = render(messages, [Reasoning("still")], end=Ending("length", USAGE))
    assert [block["type"] for block in replay(frames)] == ["thinking"]
    assert whole["stop_reason"] == "max_tokens"


def test_d3_d9_ping_and_error():
    reply = messages.Reply(Order(tools=TOOLS), CONTEXT)
    reply.begin()
    reply.feed(Content("x"))
    assert reply.keepalive() == ("ping", {"type": "ping"})
    frames = reply.fail(NotLoaded("no model is loaded; load one first"))
    assert [name for name, _ in frames] == ["content_block_stop", "error", "message_stop"]
    assert frames[1][1] == {
        "type": "error",
        "error": {
            "message": "no model is loaded; load one first",
            "type": "overloaded_error",
            "param": None,
            "code": None,
        },
        "request_id": "req-1",
    }


def test_h12_forty_calls_are_forty_blocks():
    parts = [ToolCall(f"call_{at}", "list", "{}") for at in range(40)]
    assert len(replay(render(messages, parts)[0])) == 40
