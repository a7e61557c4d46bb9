"""The official `anthropic` package against a server of ours; its own types take in all that comes."""

from typing import Literal

import pytest
from pydantic import BaseModel
from typed import check

anthropic = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed (pip install -e '.[test]')")

pytestmark = pytest.mark.filterwarnings("error")
ASK = [{"role": "user", "content": "Tell me a thing"}]
SCHEMA = {
    "type": "object",
    "properties": {"path": {"enum": ["a", "b"]}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOLS = [{"name": name, "description": f"{name} it", "input_schema": SCHEMA} for name in ("read", "list")]
# What this SDK has no word for (any more) goes beside.
CALLING = {"max_tokens": 400, "extra_body": {"temperature": 1, "seed": 10}}


class Person(BaseModel):
    name: Literal["ann", "bob"]


@pytest.fixture(scope="module")
def client(tiny):
    with anthropic.Anthropic(base_url=tiny.url, api_key=tiny.key, max_retries=0, timeout=60) as made:
        yield made


def test_a_message_streamed_and_not(client):
    asked = {"model": "m", "system": "Be brief.", "messages": ASK, "max_tokens": 24}
    whole = check(client.messages.create(**asked))
    (block,) = whole.content
    assert block.text and whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 24
    assert whole._request_id, "the header that this SDK reads"
    raw = [check(event) for event in client.messages.create(**asked, stream=True)]
    assert [event.type for event in raw if event.type != "content_block_delta"] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    with client.messages.stream(**asked) as stream:
        kinds = [check(event, strictly=False).type for event in stream]
        final = stream.get_final_message()
    assert "text" in kinds and final.content[0].text == block.text and stream.request_id
    assert final.usage.output_tokens == 24 and final.stop_reason == "max_tokens"
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == block.text


def test_thoughts_are_blocks_that_can_be_sent_back(client):
    asked = {"model": "m", "messages": ASK, "max_tokens": 24, "thinking": {"type": "enabled", "budget_tokens": 6}}
    thought, *_ = check(client.messages.create(**asked)).content
    assert thought.type == "thinking" and thought.thinking and thought.signature
    with client.messages.stream(**asked) as stream:
        kinds = {check(event, strictly=False).type for event in stream}
        final = check(stream.get_final_message(), strictly=False)
    assert {"thinking", "signature"} <= kinds
    assert (final.content[0].thinking, final.content[0].signature) == (thought.thinking, thought.signature)
    after = [*ASK, {"role": "assistant", "content": final.content}, {"role": "user", "content": "more"}]
    assert check(client.messages.create(model="m", messages=after, max_tokens=4)).content


@pytest.mark.parametrize(
    ("choice", "names"), [({"type": "any"}, {"read", "list"}), ({"type": "tool", "name": "list"}, {"list"})]
)
def test_a_call_and_its_result(client, choice, names):
    choice = {**choice, "disable_parallel_tool_use": True}
    asked = {"model": "m", "messages": ASK, "tools": TOOLS, "tool_choice": choice, **CALLING}
    answer = check(client.messages.create(**asked))
    (used,) = (block for block in answer.content if block.type == "tool_use")
    assert answer.stop_reason == "tool_use" and used.name in names and used.input["path"] in ("a", "b")
    with client.messages.stream(**asked) as stream:
        kinds = {check(event, strictly=False).type for event in stream}
        (streamed,) = (block for block in stream.get_final_message().content if block.type == "tool_use")
    assert "input_json" in kinds and (streamed.name, streamed.input) == (used.name, used.input)
    result = {"type": "tool_result", "tool_use_id": used.id, "content": [{"type": "text", "text": "it is empty"}]}
    after = [*ASK, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert check(client.messages.create(model="m", messages=after, tools=TOOLS, max_tokens=4)).content
    counted = check(client.messages.count_tokens(model="m", messages=after, tools=TOOLS))
    assert counted.input_tokens > client.messages.count_tokens(model="m", messages=ASK).input_tokens > 0


def test_a_message_is_parsed_into_what_was_asked_for(client):
    asked = {"model": "m", "messages": ASK, "max_tokens": 300, "extra_body": {"temperature": 1, "seed": 10}}
    answer = client.messages.parse(**asked, output_format=Person)
    assert isinstance(answer.parsed_output, Person)
    with client.messages.stream(**asked, output_format=Person) as stream:
        assert stream.get_final_message().parsed_output == answer.parsed_output


def test_the_count_is_that_of_the_prompt(client):
    asked = {"model": "m", "system": "Be brief.", "messages": ASK, "tools": TOOLS}
    used = client.messages.create(**asked, max_tokens=2).usage
    read = used.input_tokens + used.cache_read_input_tokens + used.cache_creation_input_tokens
    assert client.messages.count_tokens(**asked).input_tokens == read


def test_the_listing_of_models(client):
    both = frozenset({"object", "created", "owned_by"})
    (listed,) = [check(model, extra=both) for model in client.models.list()]
    assert check(client.models.retrieve(listed.id), extra=both) == listed


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_are_the_exceptions_of_their_status(client, stream):
    """Contract section 2, by what really leads to each; the rest is in test_errors.py."""

    def refused(kind, using=client, **fields):
        with pytest.raises(kind) as caught:
            using.messages.create(**{"model": "m", "messages": ASK, "max_tokens": 4, "stream": stream, **fields})
        error = caught.value
        assert error.body["type"] == "error" and error.body["error"]["message"] == error.api_message
        assert error.request_id == error.body["request_id"]
        return error

    long = refused(anthropic.BadRequestError, messages=[{"role": "user", "content": "x" * 5000}])
    assert long.type == "invalid_request_error" and long.api_message.startswith("prompt is too long: 5")
    assert refused(anthropic.UnprocessableEntityError, max_tokens=0).body["error"]["param"] == "max_tokens"
    stranger = client.with_options(api_key="another-key")
    assert refused(anthropic.AuthenticationError, stranger).type == "authentication_error"
    foreign = client.with_options(default_headers={"Origin": "http://elsewhere.example"})
    assert refused(anthropic.PermissionDeniedError, foreign).type == "permission_error"
