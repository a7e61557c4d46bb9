"""Formats that are enforced: from a request in each dialect to an answer that keeps to it."""

import json

import pytest
from live import GENERATION, body_for, served, text_of, write_target

from dspark.decoding import grammar
from dspark.errors import BadRequest, ExtraMissing
from dspark.server.constraints import constraint_of
from dspark.server.order import NO_WISHES, Order, ResponseFormat, Thinking, Tool, ToolChoice

CHAT, COMPLETIONS, MESSAGES, RESPONSES = GENERATION
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
READ = {
    "type": "object",
    "properties": {"path": {"enum": ["a", "b"]}},
    "required": ["path"],
    "additionalProperties": False,
}

llguidance = pytest.importorskip("llguidance", reason="the extra `structured` is not installed")


def asked(path):
    if path == RESPONSES:
        return {"text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}}}
    if path == MESSAGES:
        return {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}}


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_keeps_to_its_schema(live, path, stream):
    """E11, G11: on a random model, with speculation on."""
    from live import streamed_text

    body = body_for(path, "Who?", max_tokens=200, temperature=1, seed=4, **asked(path))
    text = streamed_text(path, live.stream(path, body)) if stream else text_of(path, live.post(path, body))
    person = json.loads(text)
    assert person["name"] in ("ann", "bob") and 0 <= person["age"] <= 99 and set(person) == {"name", "age"}


def test_any_object_where_no_schema_is_given(live):
    body = body_for(CHAT, "Who?", max_tokens=1200, temperature=1, seed=1, response_format={"type": "json_object"})
    answer = live.post(CHAT, body)["choices"][0]
    assert answer["finish_reason"] == "length" or isinstance(json.loads(answer["message"]["content"]), dict)
    assert answer["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_enforced_is_refused_by_its_status(live, stream):
    broken = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    refused = live.http.post(CHAT, json=body_for(CHAT, "Who?", stream=stream, response_format=broken))
    assert refused.status_code == 400 and "schema" in refused.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_the_model_has_no_way_to_write_is_refused_by_its_status(live, stream):
    """Found out as the request is taken up, and still not in a stream."""
    tools = [{"type": "function", "function": {"name": "read", "parameters": READ}}]
    refused = live.http.post(CHAT, json=body_for(CHAT, "Read.", stream=stream, tools=tools, tool_choice="required"))
    assert refused.status_code == 400 and "no markup for tool calls" in refused.json()["error"]["message"]


def test_a_call_that_is_required_is_made(tmp_path, own_home):
    """tool_choice required and named, on a model whose template knows tools."""
    template = (
        "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}<|{{ m.role }}|>"
        '{{ m.content }}{% for tool_call in m.tool_calls or [] %}<tool_call>\n{"name": "{{ tool_call.name }}"}'
        "\n</tool_call>"
        "{% endfor %}\n{% endfor %}<|assistant|>"
    )
    target = write_target(tmp_path / "tools", template=template)
    tools = [
        {"type": "function", "function": {"name": name, "parameters": READ, "strict": True}}
        for name in ("read", "list")
    ]
    with served(model=target, drafter="none", mode="lookup") as live:
        for choice, names in (
            ("required", {"read", "list"}),
            ({"type": "function", "function": {"name": "list"}}, {"list"}),
        ):
            body = body_for(CHAT, "Read.", max_tokens=400, temperature=1, seed=2, tools=tools, tool_choice=choice)
            answer = live.post(CHAT, {**body, "parallel_tool_calls": False})["choices"][0]
            assert answer["finish_reason"] == "tool_calls"
            (call,) = answer["message"]["tool_calls"]
            assert call["function"]["name"] in names
            assert json.loads(call["function"]["arguments"])["path"] in ("a", "b")


def test_without_the_extra_the_refusal_names_it(live, monkeypatch):
    """400, and what to install."""

    def missing():
        raise ExtraMissing("install it with: pip install 'mlx-dspark[structured]'")

    monkeypatch.setattr(grammar, "library", missing)
    refused = live.http.post(CHAT, json=body_for(CHAT, "Who?", **asked(CHAT)))
    assert refused.status_code == 400 and "mlx-dspark[structured]" in refused.json()["error"]["message"]


TOOL = Tool("read", parameters=READ)
PLAIN = Order()


def form(order, thinking=NO_WISHES, **where):
    return constraint_of(order, thinking, **{"opens_thinking": False, "raw": False, **where})


def test_an_order_without_wishes_is_free():
    assert form(PLAIN) is None
    assert form(Order(tools=(TOOL,))) is None, "tools that are not strict are the model's own to write"
    assert form(Order(tools=(Tool("read", strict=True),), tool_choice=ToolChoice("none"))) is None


def test_a_thinking_budget_is_enforced_but_not_on_raw_prompts():
    budgeted = form(PLAIN, Thinking(budget=7), opens_thinking=True)
    assert (budgeted.budget, budgeted.opened, budgeted.then) == (7, True, None)
    assert form(PLAIN, Thinking(budget=7), raw=True) is None


def test_a_format_begins_behind_the_thoughts():
    wrapped = form(Order(response_format=ResponseFormat(SCHEMA)))
    assert wrapped.budget is None and isinstance(wrapped.then, grammar.Grammar)
    assert isinstance(form(Order(response_format=ResponseFormat(SCHEMA)), raw=True), grammar.Grammar)


def test_a_format_and_tools_do_not_go_together():
    both = Order(response_format=ResponseFormat(SCHEMA), tools=(TOOL,))
    with pytest.raises(BadRequest, match="leave one of them out") as refused:
        form(both)
    assert refused.value.param == "response_format"
    assert form(Order(response_format=ResponseFormat(SCHEMA), tools=(TOOL,), tool_choice=ToolChoice("none")))


def test_strict_tools_are_enforced_under_auto_too():
    calls = form(Order(tools=(Tool("read", parameters=READ, strict=True),), parallel_tool_calls=False)).then
    assert (calls.required, calls.only, calls.parallel) == (False, None, False)
    assert calls.tools[0]["function"]["strict"] is True
    named = form(Order(tools=(TOOL,), tool_choice=ToolChoice("required", "read"))).then
    assert (named.required, named.only) == (True, "read")
