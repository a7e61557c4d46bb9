"""Whatever a body holds, it is an order with a prompt, or an error that says what is wrong."""

import json

import pytest
from chatting import HERMES, THINK, chat_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspark.errors import DSparkError
from dspark.server.conversation import Conversation
from dspark.server.dialects import chat, completions, messages, responses
from dspark.server.dialects.items import ContentField, ItemField
from dspark.server.dialects.items import ToolField as ResponsesTool

TALK = Conversation(chat_tokenizer(HERMES, tokens=THINK, family="json_tools"))
WORDS = [
    "text",
    "user",
    "assistant",
    "system",
    "tool",
    "function",
    "auto",
    "required",
    "none",
    "f",
    "c1",
    "{}",
    "",
    "é\ud83d",
]
WORDS += [
    "input_text",
    "tool_use",
    "tool_result",
    "image",
    "custom",
    "namespace",
    "function_call",
    "reasoning",
    "message",
]
WORDS += ["function_call_output", "json_schema", "json_object", "high", "enabled", "allowed_tools", "additional_tools"]
FIELDS = sorted(
    {
        *chat.Body.model_fields,
        *completions.Body.model_fields,
        *messages.Body.model_fields,
        *messages.BlockField.model_fields,
        *responses.Body.model_fields,
        *ItemField.model_fields,
        *ContentField.model_fields,
        *ResponsesTool.model_fields,
        *chat.MessageField.model_fields,
        *["role", "format", "schema", "json_schema", "effort", "budget_tokens", "include_usage", "input_schema"],
    }
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(-3, 3),
    st.just(10**30),
    st.sampled_from(WORDS),
    st.text(max_size=3),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)
DIALECTS = {
    "chat": (chat, {"messages": [{"role": "user", "content": "x"}]}),
    "completions": (completions, {"prompt": "x"}),
    "messages": (messages, {"messages": [{"role": "user", "content": "x"}]}),
    "responses": (responses, {"input": "x"}),
}


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_fields_are_an_order_or_an_error(name, data):
    dialect, minimal = DIALECTS[name]
    names = sorted(dialect.Body.model_fields)
    given_fields = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=4))
    try:
        order = dialect.parse(json.dumps({**minimal, **given_fields}).encode())
        order.sampling.over().check(1000)
        for prompt in TALK.prompts(order):
            assert prompt.ids and prompt.text.encode()
            assert TALK.splitter(order, prompt).finish("stop") == []
    except DSparkError as error:
        assert error.status in (400, 422) and str(error).strip()


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=100, deadline=None)
@given(body=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_an_order_or_an_error(name, body):
    dialect, _ = DIALECTS[name]
    with pytest.raises(DSparkError) as caught:
        dialect.parse(body)
    assert caught.value.status in (400, 422)
