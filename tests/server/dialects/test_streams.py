"""In every dialect: the stream, joined, is the whole answer, however the model's text was cut into pieces."""

import json

import pytest
from answers import CONTEXT, USAGE
from chatting import HERMES, THINK, chat_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.server.conversation import Conversation
from dspark.server.dialects import chat, completions, messages, responses
from dspark.server.order import Message, Order, Tool
from dspark.server.parts import Ending

READ = Tool("read", "", {"type": "object", "properties": {"path": {"type": "string"}}})
TALK = Conversation(chat_tokenizer(HERMES, tokens=THINK, family="json_tools"))
CHAT = Order(messages=(Message("user", "hi"),), tools=(READ,))
RAW = Order(prompts=("hi",))
CALL = '<tool_call>{"name": "read", "arguments": {"path": "žluť"}}</tool_call>'
WORDS = ["Hello, ", "světe 🐎", "plan", " ", "\n", "`", "<"]
PIECES = [*WORDS, "<think>\n", "\n</think>\n\n", CALL, "<tool_call>", "</tool_call>"]


def answer(dialect, order, pieces, reason):
    """The frames of a stream and the whole answer, ids of calls made equal."""
    ids = iter(range(100))
    splitter = TALK.splitter(order, TALK.prompts(order)[0])
    splitter._new_id = lambda: f"call_{next(ids)}"
    reply = dialect.Reply(order, CONTEXT)
    frames = reply.begin()
    for piece in pieces:
        for part in splitter.feed(piece):
            frames += reply.feed(part)
    for part in splitter.finish(reason):
        frames += reply.feed(part)
    frames += reply.finish(Ending(splitter.reason, USAGE))
    return frames, reply.whole()


def of_chat(frames, whole):
    deltas = [choice["delta"] for _, data in frames[:-1] for choice in data["choices"]]
    message = whole["choices"][0]["message"]
    streamed = {
        "content": "".join(delta.get("content", "") for delta in deltas),
        "reasoning": "".join(delta.get("reasoning_content", "") for delta in deltas),
        "calls": [call["function"] for delta in deltas for call in delta.get("tool_calls", [])],
    }
    told = {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": [call["function"] for call in message.get("tool_calls", [])],
    }
    return streamed, told


def of_completions(frames, whole):
    return "".join(data["choices"][0]["text"] for _, data in frames[:-1]), whole["choices"][0]["text"]


def of_messages(frames, whole):
    blocks = []
    for name, data in frames:
        if name == "content_block_start":
            blocks.append("")
        elif name == "content_block_delta":
            blocks[-1] += next(
                (data["delta"][key] for key in ("text", "thinking", "partial_json") if key in data["delta"]), ""
            )
    told = [
        json.dumps(block["input"], ensure_ascii=False) if block["type"] == "tool_use" else block[block["type"]]
        for block in whole["content"]
    ]
    return blocks, told


def of_responses(frames, whole):
    items = []
    for name, data in frames:
        if name == "response.output_item.added":
            items.append("")
        elif name.endswith(".delta"):
            items[-1] += data["delta"]
    told = [item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in whole["output"]]
    return items, told


DIALECTS = {
    "chat": (chat, CHAT, of_chat),
    "completions": (completions, RAW, of_completions),
    "messages": (messages, CHAT, of_messages),
    "responses": (responses, CHAT, of_responses),
}


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=80, deadline=None)
@given(
    text=st.lists(st.sampled_from(PIECES), max_size=7).map("".join),
    reason=st.sampled_from(["stop", "length"]),
    data=st.data(),
)
def test_the_joined_stream_is_the_whole_answer(name, text, reason, data):
    dialect, order, read = DIALECTS[name]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=10)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    frames, whole = answer(dialect, order, pieces, reason)
    streamed, told = read(frames, whole)
    assert streamed == told
    assert whole == answer(dialect, order, [text], reason)[1]
    if name == "completions":
        assert told == text
