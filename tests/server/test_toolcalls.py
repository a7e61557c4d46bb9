"""Calls in every format that mlx-lm parses."""

import json
import pkgutil
from functools import cache

import mlx_lm.tool_parsers
import pytest
from chatting import chat_tokenizer

from dspark.server.markup import Markup
from dspark.server.order import Tool
from dspark.server.parts import Content, ToolCall
from dspark.server.splitting import Splitter
from dspark.server.toolcalls import MalformedCall, ToolFormat

WRITE = Tool(
    "write",
    "",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "deep": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    },
)
ASIDE = Tool("aside")
TOOLS = (WRITE, ASIDE)
ARGUMENTS = {"text": "hello", "count": 3}
K3 = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")


def k3(name, *arguments):
    inner = "".join(
        f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
        for key, kind, value in arguments
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{inner}<|close|>call<|sep|>'


# What each family writes for write(text={}, count=3), for a call without arguments, and for two calls at once.
ONE = {
    "json_tools": '<tool_call>\n{"name": "write", "arguments": {"text": %s, "count": 3}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=write>\n<parameter=text>\n{}\n</parameter>\n"
    "<parameter=count>\n3\n</parameter>\n"
    "</function>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="write">\n<parameter name="text">{}</parameter>\n'
    '<parameter name="count">3</parameter>\n</invoke>\n</minimax:tool_call>',
    "minicpm5": '<function name="write"><param name="text">{}</param><param name="count">3</param></function>',
    "muse_spark": '<atem:function_calls>\n<atem:invoke name="write">\n<atem:parameter name="text">{}</atem:parameter>\n'
    '<atem:parameter name="count">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
    "glm47": "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>{}</arg_value>\n<arg_key>count</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>",
    "longcat": "<longcat_tool_call>write\n<longcat_arg_key>text</longcat_arg_key>\n<longcat_arg_value>{}"
    "</longcat_arg_value>\n<longcat_arg_key>count</longcat_arg_key>\n<longcat_arg_value>3</longcat_arg_value>\n"
    "</longcat_tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>"
    '{"text": %s, "count": 3}<|tool_call_end|><|tool_calls_section_end|>',
    "kimi_k3": "<|open|>tools<|sep|>"
    + k3("write", ("text", "string", "{}"), ("count", "number", "3"))
    + "<|close|>tools<|sep|>",
    "gemma4": '<|tool_call>call:write{text:<|"|>@<|"|>,count:3}<tool_call|>',
    "function_gemma": "<start_function_call>call:write{text:<escape>@<escape>,count:3}<end_function_call>",
    "pythonic": "<|tool_call_start|>[write(text=%s, count=3)]<|tool_call_end|>",
    "mistral": '[TOOL_CALLS]write[ARGS]{"text": %s, "count": 3}',
}
ONE["laguna"] = ONE["glm47"]
QUOTED = ("json_tools", "kimi_k2", "pythonic", "mistral")


def written(family, value):
    form = ONE[family]
    if family in QUOTED:
        return form.replace("%s", json.dumps(value))
    return form.replace("@" if "gemma" in family else "{}", value)


@cache
def setting(family):
    tokenizer = chat_tokenizer(tokens=K3 if family == "kimi_k3" else (), family=family)
    found = ToolFormat.of(tokenizer)
    return found, Markup.of(tokenizer, found)


def split(text, family, reason="stop", pieces=1):
    splitter = Splitter(setting(family)[1], TOOLS, new_id=lambda: "call_1")
    parts = [part for at in range(0, len(text), pieces) for part in splitter.feed(text[at : at + pieces])]
    parts += splitter.finish(reason)
    content = "".join(part.text for part in parts if isinstance(part, Content))
    calls = [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, ToolCall)]
    return content, calls, splitter.reason


def test_every_family_of_mlx_lm_is_here():
    names = {module.name for module in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)}
    assert names == set(ONE)


@pytest.mark.parametrize("family", ONE)
def test_a_call_with_text_around_it(family):
    after = "" if family == "mistral" else " after"
    text = f"before {written(family, 'hello')}{after}"
    assert split(text, family) == (f"before {after}", [("write", ARGUMENTS)], "tool_calls")


@pytest.mark.parametrize("family", ONE)
def test_two_calls(family):
    assert split(written(family, "a") + written(family, "b"), family)[1] == [
        ("write", {"text": "a", "count": 3}),
        ("write", {"text": "b", "count": 3}),
    ]


HOSTILE = [
    "</parameter>",
    "<parameter=x>",
    "</tool_call>",
    "</function>",
    "a </parameter> b <parameter=x> c </tool_call> d </function> e",
    "</invoke> </param> </arg_value> </atem:parameter> </atem:invoke>",
    "f({a}, [b]) }",
    'say "hi"',
    "it's",
    "<b>bold</b> & more",
    "[TOOL_CALLS] [ARGS]",
    "two\nlines",
    "\\d+ \\u12",
    "žluťoučký 🐎",
    "null",
    "true",
    "123",
]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("family", [name for name in ONE if name != "laguna"])
def test_h4_whatever_a_value_holds_stays_whole(family, value):
    text = written(family, value)
    expected = ("", [("write", {"text": value, "count": 3})], "tool_calls")
    assert split(text, family) == expected
    for pieces in (1, 3, 8):
        assert split(text, family, pieces=pieces) == expected


@pytest.mark.parametrize("family", [name for name in ONE if name != "laguna"])
def test_h6_every_way_to_cut_a_call_off_gives_all_of_it_or_nothing(family):
    text = written(family, "hello")
    for at in range(len(text)):
        content, calls, reason = split(text[:at], family, "length")
        if calls:
            assert (content, calls, reason) == ("", [("write", ARGUMENTS)], "tool_calls")
        else:
            assert reason == "length" and text.startswith(content)
            assert len(content) < len(setting(family)[0].start)


def test_values_have_the_types_that_are_declared():
    text = (
        "<tool_call>\n<function=write>\n<parameter=count>\n5\n</parameter>\n<parameter=deep>\nTrue\n</parameter>\n"
        '<parameter=tags>\n["a", "b"]\n</parameter>\n<parameter=maybe>\n7\n</parameter>\n</function>\n</tool_call>'
    )
    assert split(text, "qwen3_coder")[1] == [("write", {"count": 5, "deep": True, "tags": ["a", "b"], "maybe": "7"})]


def test_a_value_that_is_not_of_its_type_stays_as_it_is_written():
    text = "<tool_call>\n<function=write>\n<parameter=count>\nmany\n</parameter>\n</function>\n</tool_call>"
    assert split(text, "qwen3_coder")[1] == [("write", {"count": "many"})]


PLAIN = ToolFormat.of(chat_tokenizer(family="json_tools"))
PATTERN = Tool("grep", "", {"type": "object", "properties": {"p": {"type": "string"}}})


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        (r'{"p":"\d+"}', {"p": r"\d+"}),
        (r'{"p":"a\\b \n \d"}', {"p": "a\\b \n \\d"}),
        ("{'p':'b'}", {"p": "b"}),
        ('{"p":"b",}', {"p": "b"}),
        ('{"p":"a, }",}', {"p": "a, }"}),
        ('"{\\"p\\": \\"b\\"}"', {"p": "b"}),
        ('""', {}),
        ("null", {}),
        ('{"p":"two\nlines"}', {"p": "two\nlines"}),
    ],
)
def test_h3_json_as_models_write_it(arguments, right):
    quote = "'" if arguments.startswith("{'") else '"'
    text = f"{{{quote}name{quote}: {quote}grep{quote}, {quote}arguments{quote}: {arguments}}}"
    [(name, read)] = PLAIN.calls(text, [PATTERN])
    assert (name, json.loads(read)) == ("grep", right)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "grep", "arguments": [1]}',
        '{"name": "grep", "arguments": "a"}',
        '{"name": "grep", "arguments": {"p": NaN}}',
        '{"arguments": {}}',
        '{"name": "other", "arguments": {}}',
        '{"name": 5, "arguments": {}}',
        "[]",
        "",
        "(" * 5000,
        "[" * 100_000,
    ],
)
def test_h3_no_text_does_more_than_be_malformed(text):
    with pytest.raises(MalformedCall):
        PLAIN.calls(text, [PATTERN])


def test_a_schema_that_is_none_breaks_nothing():
    odd = Tool("write", "", {"properties": {"text": True}, "type": "object"})
    found, _ = setting("qwen3_coder")
    assert found.calls("<function=write>\n<parameter=text>\n5\n</parameter>\n</function>", [odd]) == [
        ("write", '{"text": "5"}')
    ]


@pytest.mark.parametrize(
    ("family", "unit"), [("json_tools", '"</tool_call>'), ("qwen3_coder", "<parameter=a></tool_call>")]
)
def test_o7_a_model_that_goes_round_in_circles_takes_no_time(family, unit):
    """Ten thousand times: quadratic work would take minutes, and the test's own time limit would end it."""
    content, calls, _ = split("<tool_call>" + unit * 10_000, family, "length", pieces=len(unit))
    assert calls == [] and content.startswith("<tool_call>")


def test_a_family_that_is_not_known_here_ends_at_its_first_marker():
    found = ToolFormat("novel", "<c>", "</c>", lambda text, tools: {"name": "write", "arguments": {"text": text}})
    splitter = Splitter(Markup.of(chat_tokenizer(), found), TOOLS)
    [call, after] = splitter.feed("<c>it's</c> done")
    assert (json.loads(call.arguments), after) == ({"text": "it's"}, Content(" done"))
