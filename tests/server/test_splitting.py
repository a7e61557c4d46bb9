"""The splitter: reasoning, text and calls out of a text, however it is cut into pieces."""

import json

import pytest
from chatting import THINK, chat_tokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dspark.server.markup import Markup
from dspark.server.order import Tool
from dspark.server.parts import Content, Reasoning, ToolCall
from dspark.server.splitting import Splitter
from dspark.server.toolcalls import ToolFormat

READ = Tool("read", "", {"type": "object", "properties": {"path": {"type": "string"}, "count": {"type": "integer"}}})
GREP = Tool("grep", "", {"type": "object", "properties": {"p": {"type": "string"}}})
TOOLS = (READ, GREP)
CALL = '<tool_call>{"name": "read", "arguments": {"path": "a.txt"}}</tool_call>'
OTHER = '<tool_call>{"name": "grep", "arguments": {"p": "x"}}</tool_call>'


def markup(family="json_tools", tokens=THINK):
    tokenizer = chat_tokenizer(tokens=tokens, family=family)
    return Markup.of(tokenizer, ToolFormat.of(tokenizer))


HERMES = markup()


def split(pieces, reason="stop", markup=HERMES, tools=TOOLS, **options):
    """Reasoning, content, calls, how it ended, and the kinds of parts in order."""
    ids = iter(range(1000))
    splitter = Splitter(markup, tools, new_id=lambda: f"call_{next(ids)}", **options)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish(reason)
    joined = []
    for part in parts:
        if joined and isinstance(part, Content | Reasoning) and type(joined[-1]) is type(part):
            joined[-1] = type(part)(joined[-1].text + part.text)
        else:
            joined.append(part)
    return joined, splitter.reason


def whole(text, reason="stop", **options):
    return split([text], reason, **options)


def text_of(parts, kind=Content):
    return "".join(part.text for part in parts if isinstance(part, kind))


def calls_of(parts):
    return [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, ToolCall)]


# Every text of the field reports, with how it is asked.
TEXTS = [
    "Let me look.\n" + CALL + "\n\n" + OTHER + " done",
    CALL + OTHER,
    "\n\n" + CALL,
    "<think>\nplan\n</think>\n\nThe answer is 42.",
    "<think></think><think>b</think>c",
    "</think>\n\nhi",
    "Write `<think>x</think>` to think.",
    "<think>I quote `</think>` and `<think>x</think>` here</think>done",
    "<THINK>x</THINK>",
    "<think>never closed",
    "<think>then " + CALL,
    "<think>maybe " + CALL + " or not</think>no",
    "<think>maybe " + CALL + "</think>" + OTHER,
    "use `<tool_call>` so",
    "<tool_call>no json</tool_call> and text",
    '<tool_call>{"name":"read","arg',
    '<tool_call>{"name": "read", "arguments": {"path": "</tool_call>"}}</tool_call> end',
    "<tool_call>it's {</tool_call>\n" + CALL + " end",
    '<tool_call>{"name":"read","arguments":{"path":"a"}}',
    '<tool_call>{"name":"read","arguments":{"path":"a"}}</tool_c',
    "   ",
    "\n\n leading",
    "<think>\n\n</think>\n\n",
    "a < b <tool b <think",
    "<tool_call><tool_call>" + CALL,
]
PIECES = [*TEXTS, "<think>", "</think>", "`", "\n", " ", "x", "<tool_call>", "</tool_call>", "{", '"', "'", "</thin"]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=5).map("".join),
    st.sampled_from(["stop", "length", "cancelled"]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_every_cut_of_a_text_gives_the_same_parts(text, reason, opened, parallel, data):
    """X8"""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    options = {"opened": opened, "parallel": parallel}
    assert split(pieces, reason, **options) == whole(text, reason, **options)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_cut_at_every_place_and_in_blocks(text, reason):
    """X8"""
    expected = whole(text, reason)
    for at in range(len(text) + 1):
        assert split([text[:at], text[at:]], reason) == expected
    for size in (1, 3, 8):
        assert split([text[at : at + size] for at in range(0, len(text), size)], reason) == expected


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab <>/`\n{}'\"think", max_size=40), st.sampled_from(["stop", "length"]))
@example("<think", "length")
def test_text_without_markup_is_kept_byte_for_byte(text, reason):
    if not any(marker in text for marker in (*THINK, "<tool_call>")):
        assert text_of(whole(text, reason)[0]) == text


def test_h13_text_before_between_and_after_calls_keeps_its_order():
    parts, reason = whole(TEXTS[0])
    assert [type(part).__name__ for part in parts] == ["Content", "ToolCall", "ToolCall", "Content"]
    assert (parts[0].text, parts[3].text, reason) == ("Let me look.\n", " done", "tool_calls")
    assert calls_of(parts) == [("read", {"path": "a.txt"}), ("grep", {"p": "x"})]


def test_d2_text_flows_while_tools_are_declared_and_only_the_markup_is_held():
    splitter = Splitter(HERMES, TOOLS)
    assert splitter.feed("A plain answer") == [Content("A plain answer")]
    assert splitter.feed(" and more.<tool") == [Content(" and more.")]
    assert splitter.feed("box> is no call") == [Content("<toolbox> is no call")]
    assert splitter.feed("<tool_call>{") == []


def test_x4_an_answer_led_by_white_space():
    """D1"""
    pieces = ["plan", "</think>", "\n\n", "The an", "swer is 42. Done"]
    parts, reason = split(pieces, opened=True)
    assert parts == [Reasoning("plan"), Content("The answer is 42. Done")]
    assert reason == "stop"


def test_leading_white_space_of_an_answer_without_thought_stays():
    assert whole("\n\n leading")[0] == [Content("\n\n leading")]


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_i1_a_thought_that_the_prompt_opened_and_nothing_closed(reason):
    parts, ended = split(["still thin", "king"], reason, opened=True)
    assert parts == [Reasoning("still thinking")]
    assert ended == reason


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Write `<think>x</think>` to think.", "", "Write `<think>x</think>` to think."),
        ("<think>I quote `</think>` here</think>done", "I quote `</think>` here", "done"),
        ("<think>as `<think>x</think>` does</think>done", "as `<think>x</think>` does", "done"),
        ("<think></think><think>b</think>c", "b", "c"),
        ("</think>\n\nhi", "", "hi"),
        ("<THINK>x</THINK>", "", "<THINK>x</THINK>"),
        ("see </think> there", "", "see </think> there"),
        ("<think>a stray ` tick</think>`code`", "a stray ` tick</think>`code`", ""),
        ("<think>a stray ` tick</think>code", "a stray ` tick", "code"),
    ],
)
def test_i3_only_structural_tags_split(text, reasoning, content):
    parts, _ = whole(text)
    assert (text_of(parts, Reasoning), text_of(parts)) == (reasoning, content)


def test_i4_a_stray_thought_is_reasoning_although_none_was_asked_for():
    parts, _ = whole("<think>\nhm\n</think>\n\nhi", opened=False)
    assert parts == [Reasoning("hm"), Content("hi")]


def test_line_breaks_inside_a_thought_stay():
    parts, _ = whole("<think>\n\na\n\nb\n\n</think>\n\nc\n\n")
    assert parts == [Reasoning("a\n\nb"), Content("c\n\n")]


def test_h6_a_call_cut_off_is_no_call_and_no_markup():
    parts, reason = whole('So: <tool_call>{"name":"read","arg', "length")
    assert (parts, reason) == ([Content("So: ")], "length")


@pytest.mark.parametrize("tail", ["", "</tool_c", "\n"])
@pytest.mark.parametrize("reason", ["length", "stop"])
def test_h6_a_whole_call_without_its_closing_tag_is_recovered(tail, reason):
    parts, ended = whole('<tool_call>{"name":"read","arguments":{"path":"a"}}' + tail, reason)
    assert calls_of(parts) == [("read", {"path": "a"})]
    assert (len(parts), ended) == (1, "tool_calls")


def test_h7_a_call_closed_by_the_end_of_the_answer():
    parts, reason = whole('Hm.[TOOL_CALLS]read[ARGS]{"path": "a"}', markup=markup("mistral"))
    assert (text_of(parts), calls_of(parts), reason) == ("Hm.", [("read", {"path": "a"})], "tool_calls")


@pytest.mark.parametrize(
    "body",
    [
        "no json",
        '{"name": "unknown", "arguments": {}}',
        '{"arguments": {}}',
        '{"name": "read", "arguments": [1]}',
        "",
        "5",
    ],
)
def test_h3_a_malformed_call_is_text_and_what_follows_flows(body):
    text = f"<tool_call>{body}</tool_call> then text"
    parts, reason = whole(text)
    assert (parts, reason) == ([Content(text)], "stop")
    splitter = Splitter(HERMES, TOOLS)
    assert splitter.feed(text) == [Content(text)]


def test_a_malformed_call_does_not_swallow_the_next():
    parts, reason = whole("<tool_call>it's {</tool_call>\n" + CALL + " end")
    assert calls_of(parts) == [("read", {"path": "a.txt"})]
    assert text_of(parts) == "<tool_call>it's {</tool_call>\n end"
    assert reason == "tool_calls"


def test_h4_an_end_marker_inside_a_value_ends_nothing():
    parts, _ = whole('<tool_call>{"name": "read", "arguments": {"path": "</tool_call>"}}</tool_call> end')
    assert calls_of(parts) == [("read", {"path": "</tool_call>"})]
    assert text_of(parts) == " end"


def test_h12_one_call_forty_times():
    parts, reason = whole(CALL * 40)
    assert len(calls_of(parts)) == 40 and len({part.id for part in parts}) == 40
    assert reason == "tool_calls"


def test_e13_at_most_one_call_where_parallel_ones_are_not_wanted():
    parts, _ = whole(CALL + OTHER, parallel=False)
    assert calls_of(parts) == [("read", {"path": "a.txt"})]


def test_f13_without_tools_calls_are_text():
    tokenizer = chat_tokenizer(tokens=THINK, family="json_tools")
    parts, reason = whole(CALL, markup=Markup.of(tokenizer, None), tools=())
    assert (parts, reason) == ([Content(CALL)], "stop")


def test_a_marker_in_a_code_span_is_text():
    assert whole("use `<tool_call>` so")[0] == [Content("use `<tool_call>` so")]


def test_a_call_that_ends_an_open_thought_counts():
    parts, reason = whole("<think>so I call\n" + CALL)
    assert (text_of(parts, Reasoning), calls_of(parts), reason) == (
        "so I call",
        [("read", {"path": "a.txt"})],
        "tool_calls",
    )


@pytest.mark.parametrize("after", [" or not</think>no", "</think>no"])
def test_a_call_that_a_thought_considers_does_not(after):
    parts, reason = whole("<think>maybe " + CALL + after)
    assert (calls_of(parts), text_of(parts), reason) == ([], "no", "stop")
    assert CALL in text_of(parts, Reasoning)


def test_an_answer_cut_after_a_call_is_cut():
    parts, reason = whole(CALL + " and then", "length")
    assert (len(calls_of(parts)), reason) == (1, "length")


def test_a_thought_is_counted_to_its_end():
    text = "<think>\nplan\n</think>\n\nanswer"
    splitter = Splitter(HERMES, TOOLS)
    splitter.feed(text)
    splitter.finish("stop")
    assert text[: splitter.reasoned] == "<think>\nplan\n</think>"


def test_channels_of_thought_and_answer():
    """Kimi K3's markup: tagged channels, whose tags are no part of the answer."""
    tokens = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
    text = (
        "<|open|>think<|sep|>plan<|close|>think<|sep|><|open|>response<|sep|>hi<|close|>response<|sep|>"
        "<|close|>message<|sep|>"
    )
    parts, _ = split(text, markup=markup("kimi_k3", tokens))
    assert parts == [Reasoning("plan"), Content("hi")]


def test_messages_within_one_answer():
    """Muse Spark's form: each message of a turn has a header of its own, which is dropped."""
    from mlx_lm.chat_templates.muse_spark import RESPONSE_FORMAT

    tokenizer = chat_tokenizer(family="muse_spark", response_format=RESPONSE_FORMAT)
    marked = Markup.of(tokenizer, ToolFormat.of(tokenizer))
    text = (
        "to=self<|message|>plan<|eom|><|start|>assistant to=read<|message|><atem:function_calls>"
        '<atem:invoke name="read"><atem:parameter name="path">a</atem:parameter></atem:invoke></atem:function_calls>'
        "<|eom|><|start|>assistant to=user<|message|>answer<|eot|>"
    )
    parts, reason = split(text, markup=marked)
    assert (text_of(parts, Reasoning), text_of(parts), calls_of(parts)) == ("plan", "answer", [("read", {"path": "a"})])
    assert reason == "tool_calls"
