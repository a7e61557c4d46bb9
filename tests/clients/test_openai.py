"""The official `openai` package against a server of ours; its own types take in all that comes."""

import json
from typing import Literal

import pytest
from pydantic import BaseModel, Field
from typed import check

openai = pytest.importorskip("openai", reason="the openai SDK is not installed (pip install -e '.[test]')")

pytestmark = pytest.mark.filterwarnings("error")
ASK = [{"role": "user", "content": "Tell me a thing"}]
PATH = {
    "type": "object",
    "properties": {"path": {"enum": ["a", "b"]}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"{name} it", "parameters": PATH, "strict": True}}
    for name in ("read", "list")
]
FLAT_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]
CALLING = {"max_tokens": 400, "temperature": 1, "seed": 10, "parallel_tool_calls": False}


class Person(BaseModel):
    name: Literal["ann", "bob"]
    age: int = Field(ge=0, le=99)


class Read(BaseModel):
    path: Literal["a", "b"]


@pytest.fixture(scope="module")
def client(tiny):
    with openai.OpenAI(base_url=f"{tiny.url}/v1", api_key=tiny.key, max_retries=0, timeout=60) as made:
        yield made


def test_a_chat_streamed_and_not(client):
    whole = check(client.chat.completions.create(model="m", messages=ASK, max_tokens=24, logprobs=True, top_logprobs=2))
    text = whole.choices[0].message.content
    assert text and whole.usage.completion_tokens == 24 and whole.choices[0].finish_reason == "length"
    assert len(whole.choices[0].logprobs.content) == 24
    wanted = {"model": "m", "messages": ASK, "max_tokens": 24, "stream_options": {"include_usage": True}}
    chunks = [check(chunk) for chunk in client.chat.completions.create(**wanted, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 24


def test_the_helper_for_streams_of_chats(client):
    """It insists on an answer that came to its own end."""
    whole = client.chat.completions.create(model="m", messages=ASK, max_tokens=24).choices[0].message.content
    word = next(whole[at] for at in range(8, len(whole)) if whole[at] not in whole[:8])
    wanted = {
        "model": "m",
        "messages": ASK,
        "max_tokens": 24,
        "stop": [word],
        "stream_options": {"include_usage": True},
    }
    with client.chat.completions.stream(**wanted) as stream:
        kinds = {event.type for event in stream if check(event, strictly=False)}
        final = check(stream.get_final_completion(), strictly=False)
    assert kinds == {"chunk", "content.delta", "content.done"}
    assert final.choices[0].message.content == whole.partition(word)[0] and final.usage.completion_tokens <= 24


def test_thoughts_of_a_chat(client):
    asked = {"enable_thinking": True, "thinking_budget": 6}
    answer = check(client.chat.completions.create(model="m", messages=ASK, max_tokens=24, extra_body=asked))
    message = answer.choices[0].message
    assert message.reasoning_content and answer.usage.completion_tokens_details.reasoning_tokens > 0
    chunks = client.chat.completions.create(model="m", messages=ASK, max_tokens=24, extra_body=asked, stream=True)
    deltas = [check(chunk).choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == (message.content or "")


def test_completions(client):
    whole = check(client.completions.create(model="m", prompt=["ab", "ba"], max_tokens=8, logprobs=1, echo=False))
    assert [choice.index for choice in whole.choices] == [0, 1]
    one = client.completions.create(model="m", prompt="ab", max_tokens=8, stream=True)
    # The SDK has one type for both, in which a reason is required that no chunk but the last can have.
    assert "".join(check(chunk, strictly=False).choices[0].text for chunk in one) == whole.choices[0].text


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"read", "list"}), ({"type": "function", "function": {"name": "list"}}, {"list"})],
)
def test_a_call_in_a_chat_and_the_turn_after_it(client, choice, names):
    asked = {"model": "m", "messages": ASK, "tools": TOOLS, "tool_choice": choice, **CALLING}
    answer = check(client.chat.completions.create(**asked)).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and call.function.name in names
    assert json.loads(call.function.arguments)["path"] in ("a", "b")
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream if check(event, strictly=False, extra=frozenset({"index"}))}
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.done" in kinds
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "it is empty"}
    after = [*ASK, answer.message.model_dump(exclude_none=True), result]
    assert check(client.chat.completions.create(model="m", messages=after, tools=TOOLS, max_tokens=4)).choices


def test_a_chat_is_parsed_into_what_was_asked_for(client):
    asked = {"model": "m", "messages": ASK, "max_tokens": 300, "temperature": 1, "seed": 10}
    answer = client.chat.completions.parse(**asked, response_format=Person)
    assert isinstance(answer.choices[0].message.parsed, Person)
    with client.chat.completions.stream(**asked, response_format=Person) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema()}}
    plain = check(client.chat.completions.create(**asked, response_format=schema))
    assert Person.model_validate_json(plain.choices[0].message.content)
    reading = {**asked, **CALLING, "tools": [openai.pydantic_function_tool(Read)], "tool_choice": "required"}
    (call,) = client.chat.completions.parse(**reading).choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Read)


def test_a_response_streamed_and_not(client):
    asked = {"model": "m", "instructions": "Be brief.", "input": "Tell me a thing", "max_output_tokens": 24}
    whole = check(client.responses.create(**asked))
    assert whole.output_text and whole.status == "incomplete" and whole.usage.output_tokens == 24
    events = [check(event) for event in client.responses.create(**asked, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == whole.output_text
    with client.responses.stream(**asked) as stream:
        assert [check(event, strictly=False).type for event in stream] == [event.type for event in events]


def test_thoughts_of_a_response(client):
    asked = {"model": "m", "input": "Tell me a thing", "max_output_tokens": 24, "reasoning": {"effort": "low"}}
    more = {"enable_thinking": True, "thinking_budget": 6}
    whole = check(client.responses.create(**asked, extra_body=more))
    assert whole.output[0].type == "reasoning" and whole.usage.output_tokens_details.reasoning_tokens > 0
    events = [check(event) for event in client.responses.create(**asked, extra_body=more, stream=True)]
    thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert thought == whole.output[0].content[0].text
    after = [{"role": "user", "content": "Tell"}, *(item.to_dict() for item in whole.output)]
    after.append({"role": "user", "content": "more"})
    assert check(client.responses.create(model="m", input=after, max_output_tokens=4)).output


@pytest.mark.parametrize(
    ("choice", "names"), [("required", {"read", "list"}), ({"type": "function", "name": "list"}, {"list"})]
)
def test_a_call_in_a_response_and_the_turn_after_it(client, choice, names):
    asked = {"model": "m", "input": "Read.", "tools": FLAT_TOOLS, "tool_choice": choice, "temperature": 1}
    asked |= {"max_output_tokens": 400, "parallel_tool_calls": False, "extra_body": {"seed": 10}}
    whole = check(client.responses.create(**asked))
    (call,) = (item for item in whole.output if item.type == "function_call")
    assert call.name in names and json.loads(call.arguments)["path"] in ("a", "b")
    with client.responses.stream(**asked) as stream:
        kinds = {check(event, strictly=False, extra=frozenset({"name"})).type for event in stream}
        final = stream.get_final_response()
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= kinds
    assert [item.arguments for item in final.output if item.type == "function_call"] == [call.arguments]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "it is empty"}
    after = [{"role": "user", "content": "Read."}, *(item.to_dict() for item in whole.output), result]
    assert check(client.responses.create(model="m", input=after, tools=FLAT_TOOLS, max_output_tokens=4)).output


def test_a_response_is_parsed_into_what_was_asked_for(client):
    asked = {"model": "m", "input": "Who?", "max_output_tokens": 300, "temperature": 1, "extra_body": {"seed": 10}}
    answer = client.responses.parse(**asked, text_format=Person)
    assert isinstance(answer.output_parsed, Person)
    with client.responses.stream(**asked, text_format=Person) as stream:
        assert stream.get_final_response().output_parsed == answer.output_parsed


def test_the_listing_of_models(client):
    both = frozenset({"type", "created_at", "lifecycle", "display_name", "max_input_tokens", "max_tokens"})
    (listed,) = client.models.list().data
    check(listed, extra=both)
    assert check(client.models.retrieve(listed.id), extra=both) == listed
    assert client.chat.completions.create(model="m", messages=ASK, max_tokens=1).model == listed.id


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_are_the_exceptions_of_their_status(client, stream):
    """Contract section 2, by what really leads to each; the rest is in test_errors.py."""

    def refused(kind, using=client, **fields):
        with pytest.raises(kind) as caught:
            using.chat.completions.create(**{"model": "m", "messages": ASK, "stream": stream, **fields})
        error = caught.value
        assert set(error.body) == {"message", "type", "param", "code"} and error.body["message"] in str(error)
        assert error.request_id
        return error

    long = refused(openai.BadRequestError, messages=[{"role": "user", "content": "x" * 5000}])
    assert long.code == "context_length_exceeded" and long.body["message"].startswith("prompt is too long: 5")
    assert refused(openai.BadRequestError, messages=[{"role": "nobody", "content": "x"}]).param == "messages.0"
    hot = refused(openai.UnprocessableEntityError, temperature=3)
    assert (hot.param, hot.type) == ("temperature", "invalid_request_error")
    assert hot.body["message"] == "body -> temperature: Input should be less than or equal to 2"
    stranger = client.with_options(api_key="another-key")
    assert refused(openai.AuthenticationError, stranger).body["message"] == "Invalid API key"
    foreign = client.with_options(default_headers={"Origin": "http://elsewhere.example"})
    assert refused(openai.PermissionDeniedError, foreign).type == "permission_error"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no/such")
    assert caught.value.type == "not_found_error"
