"""OpenAI responses."""

import json

import pytest
from answers import ANSWERS, CONTEXT, FIGURES, TOOLS, USAGE, joined, render

from dspark.errors import BadRequest, NotLoaded
from dspark.server.dialects import messages, responses
from dspark.server.order import Call, Message, Order, ResponseFormat, Thinking, Tool, ToolChoice
from dspark.server.parts import Content, Ending, Reasoning, Scores, TokenScore, ToolCall

SHELL = {
    "type": "function",
    "name": "shell",
    "parameters": {"type": "object", "properties": {"cmd": {"type": "array", "items": {"type": "string"}}}},
}
X2 = {
    "model": "m",
    "instructions": "You are Codex.",
    "stream": True,
    "store": False,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {},
    "reasoning": {"effort": "high", "summary": "auto"},
    "input": [
        {
            "type": "additional_tools",
            "id": "at_1",
            "role": "developer",
            "tools": [
                {
                    "type": "namespace",
                    "name": "functions",
                    "description": "",
                    "tools": [{"type": "custom", "name": "exec", "description": "d"}],
                }
            ],
        },
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list files"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "shell", "arguments": '{"cmd":["ls"]}'},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "output_text", "text": "a.txt"}]},
    ],
    "tools": [
        SHELL,
        {
            "type": "namespace",
            "name": "mcp",
            "tools": [{"type": "function", "name": "x", "parameters": {"type": "object"}}],
        },
        {
            "type": "custom",
            "name": "apply_patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
        },
        {"type": "web_search"},
        {"type": "image_generation"},
    ],
}


def parse(**fields):
    return responses.parse(json.dumps({"input": "hi", **fields}).encode())


def refused(**fields):
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    return caught.value.status, caught.value.param, str(caught.value)


def items(*given):
    return parse(input=list(given)).messages


def test_x2_a_turn_of_codex():
    """G2, G3, G8"""
    order = parse(**X2)
    assert order.messages == (
        Message("system", "You are Codex."),
        Message("system", "rules"),
        Message("user", "list files"),
        Message("assistant", calls=(Call("call_1", "shell", '{"cmd":["ls"]}'),)),
        Message("tool", "a.txt", answers="call_1", name="shell"),
    )
    assert [(tool.name, tool.wire_name, tool.namespace, tool.custom) for tool in order.tools] == [
        ("shell", "shell", None, False),
        ("mcp__x", "x", "mcp", False),
        ("apply_patch", "apply_patch", None, True),
        ("functions__exec", "exec", "functions", True),
    ]
    assert order.thinking == Thinking(None, "high", None) and order.stream
    assert "start: /.+/" in order.tools[2].description
    assert order.tools[2].parameters["required"] == ["input"]


@pytest.mark.parametrize("kind", ["mcp", "local_shell", "web_search", "image_generation", "file_search", "novelty"])
def test_g2_tools_that_cannot_be_called_are_left_out(kind):
    assert [tool.name for tool in parse(tools=[{"type": kind, "server_label": "x"}, SHELL]).tools] == ["shell"]


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("x", "x"),
        ([{"type": "output_text", "text": "x"}, {"type": "input_text", "text": "y"}], "x\ny"),
        ([{"type": "input_image", "image_url": "data:"}], messages.UNSEEN),
        ({"ok": True}, '{"ok": true}'),
        (None, ""),
        ([], ""),
    ],
)
@pytest.mark.parametrize("arguments", ["{}", {}])
def test_g3_calls_and_outputs_in_every_form(output, text, arguments):
    told = items(
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c1", "output": output},
        {"type": "item_reference", "id": "x"},
        {"type": "novelty", "content": [{"type": "output_text", "text": "x"}]},
    )
    assert told == (Message("assistant", calls=(Call("c1", "f", "{}"),)), Message("tool", text, answers="c1", name="f"))


def test_g3_what_the_assistant_did_in_a_row_is_one_turn():
    told = items(
        {"role": "user", "content": "a"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "long"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "custom_tool_call", "call_id": "c1", "name": "exec", "namespace": "functions", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "x"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    )
    assert told == (
        Message("user", "a"),
        Message("assistant", "b", "short\nlong", (Call("c1", "functions__exec", '{"input": "ls"}'),)),
        Message("tool", "x", answers="c1", name="functions__exec"),
        Message("assistant", "no"),
    )


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "prompt"])
def test_g5_state_is_refused_and_null_is_not(field):
    status, param, message = refused(**{field: "x"})
    assert (status, param) == (400, field) and "not supported" in message
    assert parse(**{field: None}, store=True) == parse()


def test_roles_and_pictures():
    status, _, message = refused(input=[{"role": "wizard", "content": "x"}])
    assert status == 400 and "input.0: unknown role 'wizard'" in message
    status, _, message = refused(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}])
    assert status == 400 and "input_image cannot be read" in message


def test_limits_efforts_and_formats():
    assert parse(max_output_tokens=5).max_tokens == 5
    assert parse(max_output_tokens=5, max_tokens=3).max_tokens == 3
    assert parse(stop=["", "END"]).stop == ("END",)
    assert refused(max_output_tokens=0)[:2] == (422, "max_output_tokens")
    assert refused(reasoning={"effort": "banana"})[:2] == (422, "reasoning")
    assert refused(input=5)[:2] == (422, "input")
    named = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    assert parse(text={"format": named}).response_format == ResponseFormat({"type": "object"}, "n", True)
    other = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}
    assert parse(response_format=other).response_format == parse(text={"format": named}).response_format, "G11"
    assert parse(text={"format": {"type": "text"}}).response_format is None


def test_tool_choices():
    tools = X2["tools"]
    assert parse(tools=tools, tool_choice={"type": "function", "name": "x"}).tool_choice == ToolChoice(
        "required", "mcp__x"
    )
    assert parse(tools=tools, tool_choice={"type": "custom", "name": "apply_patch"}).tool_choice.name == "apply_patch"
    assert refused(tools=tools, tool_choice={"type": "function", "name": "y"})[:2] == (400, "tool_choice")
    assert refused(tools=tools, tool_choice={"type": "web_search"})[:2] == (400, "tool_choice")
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "shell"}]}
    order = parse(tools=tools, tool_choice=allowed)
    assert [tool.name for tool in order.tools] == ["shell"] and order.tool_choice == ToolChoice("required")


def replay(frames):
    """The output that a strict client builds, checking every event on the way."""
    for at, (name, data) in enumerate(frames):
        assert name == data["type"] and data["sequence_number"] == at
    kinds = [name for name, _ in frames]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete", "response.failed")
    output, current, text = [], None, ""
    for name, data in frames[2:-1]:
        if name == "response.output_item.added":
            assert current is None and data["output_index"] == len(output)
            current, text = data["item"], ""
            assert current["status"] == "in_progress"
            continue
        assert data["output_index"] == len(output)
        if name == "response.output_item.done":
            assert data["item"]["id"] == current["id"] and data["item"]["type"] == current["type"]
            done = data["item"]
            inner = done["content"][0]["text"] if "content" in done else done.get("arguments", done.get("input"))
            assert inner == text
            output.append(done)
            current = None
        else:
            assert data["item_id"] == current["id"]
            text += data.get("delta", "")
            for field in ("text", "arguments", "input"):
                assert data.get(field, text) == text
    assert current is None
    return output


@pytest.mark.parametrize("name", ANSWERS)
def test_g6_streamed_items_are_those_of_the_response(name):
    parts = ANSWERS[name]
    frames, whole = render(responses, parts)
    output = replay(frames)
    assert output == whole["output"] == frames[-1][1]["response"]["output"]
    assert frames[-1][1]["response"] == whole
    texts = [item["content"][0]["text"] for item in output if item["type"] == "message"]
    thoughts = [item["content"][0]["text"] for item in output if item["type"] == "reasoning"]
    assert ("".join(texts), "".join(thoughts)) == (joined(parts, Content), joined(parts, Reasoning))
    assert len({item["id"] for item in output}) == len(output)
    assert sum(n == "response.function_call_arguments.done" for n, _ in frames) == sum(
        isinstance(part, ToolCall) for part in parts
    )


def test_calls_go_back_under_the_clients_own_names():
    order = Order(
        tools=(
            Tool("mcp__x", wire_name="x", namespace="mcp"),
            Tool("functions__exec", custom=True, wire_name="exec", namespace="functions"),
        )
    )
    parts = [ToolCall("call_1", "mcp__x", '{"a": 1}'), ToolCall("call_2", "functions__exec", '{"input": "ls -l"}')]
    frames, whole = render(responses, parts, order)
    assert replay(frames) == whole["output"]
    [function, custom] = whole["output"]
    assert (function["type"], function["name"], function["namespace"]) == ("function_call", "x", "mcp")
    assert (function["call_id"], function["arguments"]) == ("call_1", '{"a": 1}')
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "exec", "ls -l")
    again = items(
        {**function, "type": "function_call"}, {"type": "function_call_output", "call_id": "call_1", "output": "r"}
    )
    assert again[0].calls[0].name == "mcp__x"


def test_completed_and_incomplete():
    frames, whole = render(responses, [Content("x")])
    assert frames[-1][0] == "response.completed" and whole["status"] == "completed"
    assert whole["usage"] == {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 19,
        "time_to_first_token": 0.5,
        "prompt_tokens_per_second": 16.0,
        "generation_tokens_per_second": 7.0,
        "total_time": 1.5,
    }
    assert whole["x_mlx_dspark"] == FIGURES
    frames, whole = render(responses, [Reasoning("still")], end=Ending("length", USAGE))
    assert frames[-1][0] == "response.incomplete"
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["output"][0]["status"] == "incomplete"


def test_d3_d9_keepalive_and_failure():
    reply = responses.Reply(Order(tools=TOOLS), CONTEXT)
    frames = [*reply.begin(), *reply.feed(Content("x")), reply.keepalive()]
    frames += reply.fail(NotLoaded("no model is loaded; load one first"))
    assert [data["sequence_number"] for _, data in frames] == list(range(len(frames)))
    assert frames[-1][0] == "response.failed"
    failed = frames[-1][1]["response"]
    assert failed["status"] == "failed" and failed["error"]["code"] == "server_error"
    assert failed["error"]["message"] == "no model is loaded; load one first"
    assert [name for name, _ in frames].count("response.output_item.done") == 1


def test_logprobs_belong_to_the_text():
    order = parse(include=[responses.LOGPROBS], top_logprobs=1)
    assert order.sampling.top_logprobs == 1 and parse(top_logprobs=1).sampling.top_logprobs is None
    score = TokenScore("a", b"a", -0.5)
    parts = [Scores((score,)), Reasoning("r"), Scores((score,)), Content("a")]
    frames, whole = render(responses, parts, order)
    entry = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    assert whole["output"][1]["content"][0]["logprobs"] == [entry]
    [delta] = [data for name, data in frames if name == "response.output_text.delta"]
    assert delta["logprobs"] == [entry]
