"""OpenAI chat completions."""

import json

import pytest
from answers import ANSWERS, CONTEXT, FIGURES, TOOLS, USAGE, ending, joined, render

from dspark.errors import BadRequest, DecodingError, NotLoaded, ValidationFailed
from dspark.server.dialects import chat
from dspark.server.order import Call, Message, Order, ResponseFormat, SamplingWishes, Thinking, ToolChoice
from dspark.server.parts import Content, Ending, Reasoning, Scores, TokenScore, ToolCall

HI = [{"role": "user", "content": "hi"}]
FUNCTION = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}


def parse(**fields):
    return chat.parse(json.dumps({"messages": HI, **fields}).encode())


def chunks(frames):
    assert all(name is None for name, _ in frames)
    assert frames[-1] == [None, "[DONE]"]
    return [data for _, data in frames[:-1]]


def refused(**fields):
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    return caught.value.status, caught.value.param, str(caught.value)


def test_every_field_arrives():
    order = parse(
        model="gpt-4o",
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        seed=7,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"5": 3},
        logprobs=True,
        top_logprobs=3,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
        tools=[FUNCTION],
        tool_choice="required",
        parallel_tool_calls=False,
        enable_thinking=True,
        thinking_budget=64,
        reasoning_effort="high",
        chat_template_kwargs={"style": "x"},
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
    )
    assert order.model == "gpt-4o" and order.messages == (Message("user", "hi"),)
    assert order.sampling == SamplingWishes(0.5, 0.9, 5, 0.1, 7, 1.0, -1.0, 1.1, {5: 3.0}, 3)
    assert (order.n, order.stream, order.include_usage, order.parallel_tool_calls) == (2, True, True, False)
    assert [tool.name for tool in order.tools] == ["read"] and order.tool_choice == ToolChoice("required")
    assert order.thinking == Thinking(True, "high", 64) and order.template_kwargs == {"style": "x"}
    assert order.response_format == ResponseFormat({"type": "object"}, "n", True)


@pytest.mark.parametrize("stop", [None, "", [], [""], [None]])
def test_e1_an_empty_stop_stops_nothing(stop):
    if stop == [None]:
        assert refused(stop=stop) == (422, "stop", "body -> stop -> 0: Input should be a valid string")
    else:
        assert parse(stop=stop).stop == ()


def test_e1_stop_strings_and_their_limit():
    assert parse(stop=["", "\n"]).stop == ("\n",)
    assert parse(stop="END").stop == ("END",)
    assert refused(stop=["a"] * 5)[:2] == refused(stop="a" * 100_000)[:2] == (422, "stop")
    assert refused(stop=5) == (422, "stop", "body -> stop: Input should be a valid string or list")


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_x6_numbers_without_end_are_refused_by_name(literal):
    """E2"""
    body = f'{{"messages":[{{"role":"user","content":"x"}}],"temperature":{literal}}}'.encode()
    with pytest.raises(ValidationFailed, match="body -> temperature") as caught:
        chat.parse(body)
    assert (caught.value.status, caught.value.param) == (422, "temperature")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_tokens", 0, "Input should be greater than 0"),
        ("max_tokens", -1, "Input should be greater than 0"),
        ("max_tokens", "10", "Input should be a valid integer"),
        ("max_tokens", 10.5, "Input should be a valid integer"),
        ("max_tokens", True, "Input should be a valid integer"),
        ("max_completion_tokens", 0, "Input should be greater than 0"),
        ("top_p", 0, "Input should be greater than 0"),
        ("top_p", 2.0, "Input should be less than or equal to 1"),
        ("min_p", 1, "Input should be less than 1"),
        ("temperature", "0.7", "Input should be a valid number"),
        ("temperature", 2.1, "Input should be less than or equal to 2"),
        ("temperature", False, "Input should be a valid number"),
        ("top_k", -1, "Input should be greater than or equal to 0"),
        ("n", 0, "Input should be greater than 0"),
        ("n", True, "Input should be a valid integer"),
        ("seed", 1e30, "Input should be a valid integer"),
        ("repetition_penalty", 0, "Input should be greater than 0"),
        ("presence_penalty", 3, "Input should be less than or equal to 2"),
        ("top_logprobs", 21, "Input should be less than or equal to 20"),
        ("stream", "yes", "Input should be a valid boolean"),
        ("thinking_budget", -1, "Input should be greater than or equal to 0"),
        ("logprobs", 5, "Input should be a valid boolean"),
    ],
)
def test_e3_numbers_out_of_range_or_of_another_type(field, value, message):
    """E3, A22"""
    assert refused(**{field: value}) == (422, field, f"body -> {field}: {message}")


def test_e3_several_faults_are_joined():
    status, param, message = refused(max_tokens=0, temperature="x", stream_options={"include_usage": "yes"})
    assert (status, param) == (422, "max_tokens")
    assert message == (
        "body -> max_tokens: Input should be greater than 0; body -> temperature: Input should be a valid number; "
        "body -> stream_options -> include_usage: Input should be a valid boolean"
    )


def test_e3_null_is_absent_and_large_budgets_are_for_the_cap():
    nulls = dict.fromkeys(name for name in chat.Body.model_fields if name != "messages")
    assert parse(**nulls) == parse()
    assert parse(max_tokens=999_999_999).max_tokens == 999_999_999
    assert refused(messages=None) == (422, "messages", "body -> messages: Field required")


@pytest.mark.parametrize("model", ["gpt-4o", "", None, "default_model", "someone/other-repo", "../../etc"])
def test_e4_any_model_is_named_and_nothing_is_done_with_it(model):
    assert parse(model=model).model == model
    assert chunks(render(chat, [Content("x")], parse(model=model))[0])[0]["model"] == "org/model-4bit"


def test_e6_an_image_is_refused_by_name():
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    for content in ([{"type": "text", "text": "what is this"}, image], [image]):
        status, _, message = refused(messages=[{"role": "user", "content": content}])
        assert status == 400 and "image_url cannot be read" in message


def test_a_part_of_text_that_says_nothing_is_empty():
    """Not a kind of part that cannot be read."""
    content = [{"type": "text", "text": "what"}, {"type": "text"}, {"type": "refusal", "refusal": None}]
    assert parse(messages=[{"role": "user", "content": content}]).messages[0].content.strip() == "what"


def test_e7_roles():
    roles = ["system", "developer", "user", "assistant"]
    order = parse(messages=[{"role": role, "content": "x"} for role in roles])
    assert [message.role for message in order.messages] == ["system", "system", "user", "assistant"]
    status, _, message = refused(messages=[*HI, {"role": "wizard", "content": "x"}])
    assert status == 400 and "messages.1: unknown role 'wizard'" in message


def test_e9_efforts():
    assert parse(reasoning_effort="minimal").thinking == Thinking(None, "minimal", None)
    assert parse(reasoning_effort="none").thinking == Thinking(False, None, None)
    assert parse(reasoning_effort=None).thinking == Thinking()
    assert parse(chat_template_kwargs={"reasoning_effort": "low"}).thinking.effort == "low"
    assert parse(reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "low"}).thinking.effort == "high"
    assert refused(reasoning_effort="banana")[:2] == (422, "reasoning_effort")
    assert refused(chat_template_kwargs={"reasoning_effort": "banana"})[:2] == (422, "chat_template_kwargs")
    assert refused(chat_template_kwargs={"enable_thinking": "yes"})[:2] == (422, "chat_template_kwargs")


@pytest.mark.parametrize(
    ("fields", "enabled"),
    [
        ({"enable_thinking": True}, True),
        ({"thinking": False}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"thinking": True}}, True),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"enable_thinking": True, "reasoning_effort": "none"}, True),
    ],
)
def test_i6_who_decides_about_thinking(fields, enabled):
    assert parse(**fields).thinking.enabled is enabled
    assert parse(**fields).template_kwargs == {}


def test_e10_the_smaller_of_two_limits():
    assert parse(max_completion_tokens=5).max_tokens == 5
    assert parse(max_completion_tokens=5, max_tokens=9).max_tokens == 5
    assert parse(max_completion_tokens=9, max_tokens=5).max_tokens == 5
    assert parse().max_tokens is None


def test_e12_biases_need_ids():
    assert parse(logit_bias={}).sampling.logit_bias is None
    assert refused(logit_bias={"the": 1})[:2] == (422, "logit_bias")
    assert refused(logit_bias={"5": 101})[:2] == (422, "logit_bias")


def test_e13_unknown_fields_are_ignored():
    assert parse(metadata={"a": 1}, store=True, service_tier="x", stream_options=None, user="u") == parse()


def test_logprobs_are_asked_for_together():
    assert parse(logprobs=True).sampling.top_logprobs == 0
    assert parse(logprobs=False, top_logprobs=0).sampling.top_logprobs is None
    assert refused(top_logprobs=2)[:2] == (400, "top_logprobs")


def test_e11_formats():
    assert parse(response_format={"type": "text"}).response_format is None
    assert parse(response_format={"type": "json_object"}).response_format == ResponseFormat()
    assert refused(response_format={"type": "json_schema"})[:2] == (422, "response_format")
    assert refused(response_format={"type": "xml"})[:2] == (422, "response_format")


def test_tool_choices():
    other = {"type": "function", "function": {"name": "list"}}
    assert parse(
        tools=[FUNCTION], tool_choice={"type": "function", "function": {"name": "read"}}
    ).tool_choice == ToolChoice("required", "read")
    assert refused(tools=[FUNCTION], tool_choice={"type": "function", "function": {"name": "x"}})[:2] == (
        400,
        "tool_choice",
    )
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [other]}}
    order = parse(tools=[FUNCTION, other], tool_choice=allowed)
    assert [tool.name for tool in order.tools] == ["list"] and order.tool_choice == ToolChoice("required")
    assert parse(tools=[], tool_choice="required").tool_choice == ToolChoice("auto")
    assert parse(tools=[FUNCTION], tool_choice="none").offered == ()
    assert refused(tools=[FUNCTION], tool_choice="all")[:2] == (422, "tool_choice")


@pytest.mark.parametrize(
    ("arguments", "kept"), [("{}", "{}"), ("", ""), ("{bad", "{bad"), ({"a": 1}, '{"a": 1}'), (None, "{}")]
)
def test_h10_history_is_taken_as_clients_send_it(arguments, kept):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    order = parse(
        messages=[
            *HI,
            {"role": "assistant", "tool_calls": [call], "reasoning_content": "r"},
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
        ]
    )
    assert order.messages[1:] == (
        Message("assistant", "", "r", (Call("c1", "f", kept),)),
        Message("tool", "a\nb", answers="c1"),
    )


@pytest.mark.parametrize("name", ANSWERS)
def test_the_stream_says_what_the_whole_says(name):
    parts = ANSWERS[name]
    frames, whole = render(chat, parts)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(frames)]
    message = whole["choices"][0]["message"]
    assert (
        "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "") == joined(parts, Content)
    )
    assert "".join(d.get("reasoning_content", "") for d in deltas) == message.get("reasoning_content", "")
    assert message.get("reasoning_content", "") == joined(parts, Reasoning)
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call.pop("index") for call in calls] == list(range(len(calls)))
    assert calls == message.get("tool_calls", [])
    assert chunks(frames)[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


def test_h9_two_calls():
    _, whole = render(chat, ANSWERS["two calls"])
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    [first, second] = whole["choices"][0]["message"]["tool_calls"]
    assert first == {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    assert second["function"] == {"name": "list", "arguments": "{}"}
    assert whole["choices"][0]["message"]["content"] == "Look."


def test_content_is_null_beside_calls_only():
    call = ToolCall("call_1", "list", "{}")
    assert render(chat, [call])[1]["choices"][0]["message"]["content"] is None
    assert render(chat, [])[1]["choices"][0]["message"]["content"] == ""


@pytest.mark.parametrize("include", [True, False, None])
def test_d5_x3_usage_comes_in_one_last_chunk_or_not_at_all(include):
    options = {} if include is None else {"stream_options": {"include_usage": include}}
    frames, _ = render(chat, [Content("x")], parse(stream=True, **options))
    told = chunks(frames)
    with_usage = [chunk for chunk in told if chunk.get("usage") is not None]
    if include:
        assert with_usage == [told[-1]] and told[-1]["choices"] == []
        assert told[-2]["choices"][0]["finish_reason"] == "stop"
    else:
        assert with_usage == [] and all("usage" not in chunk for chunk in told)
        assert told[-1]["choices"][0]["finish_reason"] == "stop"
    assert [chunk.get("x_mlx_dspark") for chunk in told] == [None] * (len(told) - 1) + [FIGURES]


def test_usage_has_the_standard_fields_and_the_figures():
    whole = render(chat, [Content("x")])[1]
    assert whole["usage"] == {
        "prompt_tokens": 12,
        "completion_tokens": 7,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
        "time_to_first_token": 0.5,
        "prompt_tokens_per_second": 16.0,
        "generation_tokens_per_second": 7.0,
        "total_time": 1.5,
    }
    assert whole["x_mlx_dspark"] == FIGURES


def test_d8_one_id_and_the_role_first():
    frames, whole = render(chat, ANSWERS["two calls"])
    heads = {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks(frames)}
    assert heads == {("chatcmpl-abc", 1_700_000_000, "org/model-4bit", "chat.completion.chunk")}
    assert chunks(frames)[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert whole["id"] == "chatcmpl-abc" and whole["object"] == "chat.completion"


def test_d14_two_answers_keep_their_index():
    order = parse(n=2, stream=True, stream_options={"include_usage": True})
    reply = chat.Reply(order, CONTEXT)
    frames = reply.begin()
    for index, text in enumerate(["one", "two"]):
        frames += reply.feed(Content(text), index)
        frames += reply.finish(ending([]), index)
    told = [data for _, data in frames[:-1]]
    texts = {0: "", 1: ""}
    for chunk in told[:-1]:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "one", 1: "two"}
    assert told[-1]["usage"]["prompt_tokens"] == 12 and told[-1]["usage"]["completion_tokens"] == 14
    assert told[-1]["usage"]["total_time"] is None
    assert told[-1]["x_mlx_dspark"] == {"choices": [FIGURES, FIGURES]}
    assert [choice["message"]["content"] for choice in reply.whole()["choices"]] == ["one", "two"]


def test_a4_one_logprob_a_token_streamed_or_not():
    scores = [TokenScore(letter, letter.encode(), -0.5, (TokenScore("z", None, -1.0),)) for letter in "abcd"]
    parts = [Scores(tuple(scores[:2])), Content("ab"), Scores((scores[2],)), Content("c"), Scores((scores[3],))]
    frames, whole = render(chat, parts, parse(logprobs=True, top_logprobs=1))
    entries = [e for c in chunks(frames) for e in (c["choices"][0]["logprobs"] or {}).get("content", [])]
    assert entries == whole["choices"][0]["logprobs"]["content"] and len(entries) == 4
    assert entries[0] == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [{"token": "z", "logprob": -1.0, "bytes": None}],
    }
    assert render(chat, parts, parse())[1]["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("reason", "told"),
    [("stop", "stop"), ("length", "length"), ("stop_sequence", "stop"), ("tool_calls", "tool_calls")],
)
def test_finish_reasons(reason, told):
    whole = render(chat, [Content("x")], end=Ending(reason, USAGE))[1]
    assert whole["choices"][0]["finish_reason"] == told


def test_d9_an_error_inside_a_stream():
    reply = chat.Reply(parse(stream=True), CONTEXT)
    reply.begin()
    frames = reply.fail(NotLoaded("no model is loaded; load one first"))
    assert frames == [
        (
            None,
            {
                "error": {
                    "message": "no model is loaded; load one first",
                    "type": "overloaded_error",
                    "param": None,
                    "code": None,
                }
            },
        ),
        (None, "[DONE]"),
    ]
    [(_, failed), _] = reply.fail(DecodingError("cache and record differ"))
    assert failed["error"]["type"] == "api_error"
    [(_, defect), _] = reply.fail(RuntimeError("secret"))
    assert "secret" not in json.dumps(defect)


def test_d9_a_malformed_body_is_a_plain_error():
    with pytest.raises(BadRequest) as caught:
        chat.parse(b'{"stream": true, "messages": [')
    assert caught.value.status == 400


def test_d3_a_keepalive_is_a_chunk_that_adds_nothing():
    reply = chat.Reply(Order(tools=TOOLS), CONTEXT)
    reply.begin()
    name, chunk = reply.keepalive()
    assert name is None and chunk["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
