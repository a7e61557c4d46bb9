"""Calls of tools as a grammar: each family's own markup and nothing else, read back by mlx-lm's parser."""

import importlib
import json

import pytest
from bytewise import bytewise
from toys import scripted_target

from dspark.decoding.toolgrammar import ToolCalls
from dspark.errors import ConstraintError

pytest.importorskip("llguidance", reason="llguidance (the extra `structured`) is not installed")

CITY = {"type": "string"}
WEATHER = {
    "type": "object",
    "properties": {"city": CITY, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"], "type": "string"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}


def tool(name, parameters=None, strict=True):
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


TOOLS = [tool("weather", WEATHER), tool("REINDEX")]
# The marks of each family that are tokens of their own, and a call of each tool in its markup.
FAMILIES = {
    "json_tools": (
        ["<tool_call>", "</tool_call>"],
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Göt {", "unit": "C"}}\n</tool_call>',
        '<tool_call>\n{"name": "REINDEX", "arguments": {}}\n</tool_call>',
    ),
    "longcat": (
        ["<longcat_tool_call>", "</longcat_tool_call>"],
        '<longcat_tool_call>{"name": "weather", "arguments": {"city": "Göt {", "unit": "C"}}</longcat_tool_call>',
        '<longcat_tool_call>{"name": "REINDEX", "arguments": {}}</longcat_tool_call>',
    ),
    "mistral": (
        ["[TOOL_CALLS]"],
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Göt {", "unit": "C"}}]',
        '[TOOL_CALLS][{"name": "REINDEX", "arguments": {}}]',
    ),
    "mistral ": (
        ["[TOOL_CALLS]", "[ARGS]"],
        '[TOOL_CALLS]weather[ARGS]{"city": "Göt {", "unit": "C"}',
        "[TOOL_CALLS]REINDEX[ARGS]{}",
    ),
    "kimi_k2": (
        [
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
            *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        ],
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Göt {", "unit": "C"}<|tool_call_end|><|tool_calls_section_end|>',
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.REINDEX:12<|tool_call_argument_begin|>"
        "{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "kimi_k3": (
        ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"],
        '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|><|open|>json type="object"<|sep|>'
        '{"city": "Göt {", "unit": "C"}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        '<|open|>tools<|sep|><|open|>call tool="REINDEX" index="1"<|sep|><|open|>json type="object"<|sep|>'
        "{}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    "qwen3_coder": (
        ["<tool_call>", "</tool_call>"],
        "<tool_call>\n<function=weather>\n<parameter=city>\nGöt {\n</parameter>\n<parameter=unit>\nC\n</parameter>\n"
        "</function>\n</tool_call>",
        "<tool_call>\n<function=REINDEX>\n</function>\n</tool_call>",
    ),
    "glm47": (
        ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Göt {</arg_value>"
        "<arg_key>unit</arg_key><arg_value>C</arg_value></tool_call>",
        "<tool_call>REINDEX</tool_call>",
    ),
    "minimax_m2": (
        ["<minimax:tool_call>", "</minimax:tool_call>"],
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Göt {</parameter>\n'
        '<parameter name="unit">C</parameter>\n</invoke>\n</minimax:tool_call>',
        '<minimax:tool_call>\n<invoke name="REINDEX">\n</invoke>\n</minimax:tool_call>',
    ),
    "minicpm5": (
        [],
        '<function name="weather"><param name="city">Göt {</param><param name="unit">C</param></function>',
        '<function name="REINDEX"></function>',
    ),
    "muse_spark": (
        ["<atem:function_calls>", "</atem:function_calls>"],
        '<atem:function_calls>\n<atem:invoke name="weather">\n<atem:parameter name="city">"Göt {"</atem:parameter>\n'
        '<atem:parameter name="unit">"C"</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
        '<atem:function_calls>\n<atem:invoke name="REINDEX">\n</atem:invoke>\n</atem:function_calls>',
    ),
    "pythonic": (
        ["<|tool_call_start|>", "<|tool_call_end|>"],
        '<|tool_call_start|>[weather(city="Göt {", unit="C")]<|tool_call_end|>',
        "<|tool_call_start|>[REINDEX()]<|tool_call_end|>",
    ),
    "gemma4": (
        ["<|tool_call>", "<tool_call|>", '<|"|>'],
        '<|tool_call>call:weather{city:<|"|>Göt {<|"|>,unit:<|"|>C<|"|>}<tool_call|>',
        "<|tool_call>call:REINDEX{}<tool_call|>",
    ),
    "function_gemma": (
        ["<start_function_call>", "<end_function_call>", "<escape>"],
        "<start_function_call>call:weather{city:<escape>Göt {<escape>,unit:<escape>C<escape>}<end_function_call>",
        "<start_function_call>call:REINDEX{}<end_function_call>",
    ),
}


def kelvin(text):
    """A call with a unit that does not exist."""
    before, _, after = text.rpartition("C")
    return f"{before}K{after}"


def target_of(family, marks):
    module = importlib.import_module(f"mlx_lm.tool_parsers.{family.strip()}")
    target = scripted_target([], [])
    target.tokenizer = bytewise(
        marks,
        tool_call_start=module.tool_call_start,
        tool_call_end=module.tool_call_end,
        tool_parser=module.parse_tool_call,
    )
    target.config["vocab_size"] = len(target.tokenizer) + 5
    return target


@pytest.fixture(scope="module")
def targets():
    return {family: target_of(family, marks) for family, (marks, *_) in FAMILIES.items()}


def reading(target, constraint, text):
    """How far `text` is admitted, in bytes, and whether it may end there."""
    state = constraint(target)
    ids = target.tokenizer.encode(text, add_special_tokens=False)
    count = state.admitted(ids)
    state.advance(ids[:count])
    (eos,) = target.eos
    return len(target.tokenizer.decode(ids[:count])), bool(state.masks(())[0, eos].item())


def parsed(target, text):
    """The calls in `text`, as mlx-lm's server would read them."""
    tokenizer = target.tokenizer
    inner = text.removeprefix(tokenizer.tool_call_start).removesuffix(tokenizer.tool_call_end or "")
    calls = tokenizer.tool_parser(inner, TOOLS)
    return [(call["name"], call["arguments"]) for call in (calls if isinstance(calls, list) else [calls])]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_required_call_is_in_the_familys_markup_and_read_back(targets, family):
    target = targets[family]
    _, weather, reindex = FAMILIES[family]
    required = ToolCalls(TOOLS, required=True)
    assert reading(target, required, weather) == (len(weather), True)
    assert reading(target, required, reindex) == (len(reindex), True)
    assert parsed(target, weather) == [("weather", {"city": "Göt {", "unit": "C"})]
    assert parsed(target, reindex) == [("REINDEX", {})]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "wrong", [kelvin, lambda text: text.replace("unit", "sort"), lambda text: text.replace("we", "whe")]
)
def test_other_values_missing_arguments_and_unknown_tools_are_not_admitted(targets, family, wrong):
    _, weather, _ = FAMILIES[family]
    text = wrong(weather)
    count, ends = reading(targets[family], ToolCalls(TOOLS, required=True), text)
    assert count < len(text) and not ends


@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_is_a_call_from_its_first_token_on(targets, family):
    assert reading(targets[family], ToolCalls(TOOLS, required=True), "Let me see") == (0, False)
    named = ToolCalls(TOOLS, required=True, only="REINDEX")
    _, weather, reindex = FAMILIES[family]
    assert reading(targets[family], named, reindex) == (len(reindex), True)
    assert not reading(targets[family], named, weather)[1]


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"kimi_k3"}))
def test_under_auto_text_is_free_and_a_call_is_held_to_its_schema(targets, family):
    auto = ToolCalls(TOOLS, required=False)
    _, weather, _ = FAMILIES[family]
    for text in ("Let me see {}", f"Let me see:\n{weather}", f"{weather} Well."):
        assert reading(targets[family], auto, text) == (len(text), True)
    wrong = "So: " + kelvin(weather)
    count, ends = reading(targets[family], auto, wrong)
    assert count < len(wrong) and not ends


def test_a_family_whose_mark_opens_other_blocks_too_refuses_strict_tools_under_auto(targets):
    with pytest.raises(ConstraintError, match="need tool_choice required"):
        ToolCalls(TOOLS, required=False)(targets["kimi_k3"])


@pytest.mark.parametrize("family", ["json_tools", "qwen3_coder", "minicpm5", "gemma4", "glm47"])
def test_parallel_calls_follow_each_other_unless_there_may_be_one_only(targets, family):
    _, weather, reindex = FAMILIES[family]
    between = "\n" if family in ("json_tools", "qwen3_coder") else ""
    both = f"{weather}{between}{reindex}"
    assert reading(targets[family], ToolCalls(TOOLS, required=True), both) == (len(both), True)
    for single in (ToolCalls(TOOLS, True, parallel=False), ToolCalls(TOOLS, True, only="weather")):
        assert reading(targets[family], single, both) == (len(weather), True)


@pytest.mark.parametrize("family", ["qwen3_coder", "glm47", "minimax_m2", "minicpm5"])
def test_bare_strings_may_be_any_text_and_numbers_only_numbers(targets, family):
    _, weather, _ = FAMILIES[family]
    text = weather.replace("Göt {", 'a <b>, "c" & \\ d')
    assert reading(targets[family], ToolCalls(TOOLS, required=True), text) == (len(text), True)
    assert parsed(targets[family], text)[0][1]["city"] == 'a <b>, "c" & \\ d'
    numeric = [tool("weather", {"type": "object", "properties": {"city": {"type": "number"}}, "required": ["city"]})]
    assert not reading(targets[family], ToolCalls(numeric, required=True), weather)[1]


def test_optional_arguments_may_come_and_need_not(targets):
    text = FAMILIES["pythonic"][1].replace("unit", "days=3, unit")
    assert reading(targets["pythonic"], ToolCalls(TOOLS, required=True), text) == (len(text), True)
    optional = [tool("weather", {**WEATHER, "required": []})]
    for arguments in ("", 'city="x"', "days=1", 'city="x", unit="F"'):
        text = f"<|tool_call_start|>[weather({arguments})]<|tool_call_end|>"
        assert reading(targets["pythonic"], ToolCalls(optional, required=True), text) == (len(text), True)
    text = "<|tool_call_start|>[weather(, days=1)]<|tool_call_end|>"
    assert not reading(targets["pythonic"], ToolCalls(optional, required=True), text)[1]


NOT_X = {"type": "string", "not": {"const": "x"}}
UNENFORCEABLE = {"type": "object", "properties": {"city": NOT_X}, "required": ["city"]}


@pytest.mark.parametrize("family", ["json_tools", "qwen3_coder"])
def test_what_cannot_be_enforced_is_refused_for_strict_tools_and_let_go_for_others(targets, family):
    with pytest.raises(ConstraintError, match=r"weather.*not"):
        ToolCalls([tool("weather", UNENFORCEABLE)], required=True)(targets[family])
    ToolCalls([tool("weather", UNENFORCEABLE, strict=False)], required=True)(targets[family])


@pytest.mark.parametrize(
    ("constraint", "match"),
    [
        (ToolCalls(TOOLS, True, only="time"), "time, which is none"),
        (ToolCalls([], True), "give it in tools"),
        (ToolCalls([tool("weather", [1])], True), "tool weather must be an object"),
    ],
)
def test_what_makes_no_sense_is_refused(targets, constraint, match):
    with pytest.raises(ConstraintError, match=match):
        constraint(targets["json_tools"])


def test_a_model_without_markup_cannot_be_required_to_call():
    target = scripted_target([], [])
    target.tokenizer = bytewise()
    target.config["vocab_size"] = len(target.tokenizer)
    with pytest.raises(ConstraintError, match="no markup"):
        ToolCalls(TOOLS, required=True)(target)


def test_names_that_would_break_the_markup_are_refused_or_escaped(targets):
    for name in ("a b", 'a"b', "<x>"):
        with pytest.raises(ConstraintError, match="letters"):
            ToolCalls([tool(name)], required=True)(targets["qwen3_coder"])
    text = f'<tool_call>\n{{"name": {json.dumps("a b")}, "arguments": {{}}}}\n</tool_call>'
    assert reading(targets["json_tools"], ToolCalls([tool("a b")], required=True), text) == (len(text), True)
