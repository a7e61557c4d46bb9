"""Structured answers by llguidance: always valid, equal to plain constrained decoding, speculation on."""

import json
import sys

import pytest
from bytewise import bytewise
from tiny import DEEPSPEC, head_weights, write_head, write_llama
from toys import EOS, scripted_target

from dspark.decoding.grammar import Grammar, for_json_object, for_json_schema
from dspark.decoding.request import Request, Sampling, SpeculationOptions
from dspark.decoding.thinking import Thinking
from dspark.decoding.toolgrammar import ToolCalls
from dspark.engine import Engine, LoadOptions
from dspark.errors import ConstraintError, ExtraMissing

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance", reason="llguidance (the extra `structured`) is not installed")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "kind": {"enum": ["cat", "dog", "elephant"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "kind", "age", "tags"],
    "additionalProperties": False,
}
MODES = {
    "lookup": SpeculationOptions("lookup", cap=8),
    "dspark": SpeculationOptions("dspark", cap=5, lookup=False),
    "both": SpeculationOptions("dspark", cap=5, lookup=True),
    "auto": SpeculationOptions("dspark"),
    "confident": SpeculationOptions("dspark", cap=5, confidence=0.2),
}
PLAIN = SpeculationOptions("baseline")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A random pair whose tokens are bytes; its vocabulary is wider than its tokenizer."""
    root, tokenizer = tmp_path_factory.mktemp("pair"), bytewise()
    vocabulary = len(tokenizer) + 9
    target = write_llama(
        root / "target", vocab_size=vocabulary, eos_token_id=tokenizer.eos_token_id, max_position_embeddings=2048
    )
    tokenizer._tokenizer.save_pretrained(target)
    head = write_head(
        root / "head", {**DEEPSPEC, "vocab_size": vocabulary}, head_weights(1, vocabulary, draft_vocabulary=vocabulary)
    )
    engine = Engine()
    engine.load(LoadOptions(model=str(target), drafter=str(head)))
    return engine


def answer(engine, speculation, constraint, max_tokens=400, prompt=(5, 9, 33), **sampling):
    asked = Request(
        list(prompt), max_tokens, speculation=speculation, sampling=Sampling(**sampling), constraint=constraint
    )
    *_, last = engine.generate(asked)
    return last


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("mode", MODES)
def test_every_answer_is_valid_and_the_plain_one(engine, mode, seed):
    sampling = {} if seed is None else {"temperature": 1.0, "seed": seed, "top_p": 0.95}
    constraint = for_json_schema(PERSON)
    plain = answer(engine, PLAIN, constraint, **sampling)
    assert plain.reason == "stop"
    jsonschema.validate(json.loads(plain.text), PERSON)
    last = answer(engine, MODES[mode], constraint, **sampling)
    assert (last.tokens, last.text, last.reason) == (plain.tokens, plain.text, plain.reason)
    if mode == "dspark":
        assert last.statistics.accepted > 0, "what is forced is never wrong, so something is accepted"
        assert last.statistics.target_forwards < plain.statistics.target_forwards


def test_a_whole_answer_leaves_only_the_end():
    target = scripted_target([], [])
    target.tokenizer = bytewise()
    target.config["vocab_size"] = len(target.tokenizer)
    (eos,) = target.eos
    closed, open_ = for_json_object()(target), Grammar('start: "ab"+\n')(target)
    closed.advance(target.tokenizer.encode('{"a": 1}'))
    assert [i for i, yes in enumerate(closed.masks(())[0].tolist()) if yes] == [eos]
    open_.advance(target.tokenizer.encode("ab"))
    assert {i for i, yes in enumerate(open_.masks(())[0].tolist()) if yes} == {eos, *target.tokenizer.encode("a")}


def test_looking_ahead_does_not_move_the_state():
    target = scripted_target([], [])
    target.tokenizer = bytewise()
    target.config["vocab_size"] = len(target.tokenizer) + 70
    state = for_json_schema(PERSON)(target)
    ids = target.tokenizer.encode('{"name": "x')
    state.advance(ids[:2])
    before = state.masks(()).tolist()
    assert len(before[0]) == target.vocabulary and not any(before[0][len(target.tokenizer) :])
    rows = state.masks(ids[2:]).tolist()
    assert state.admitted([*ids[2:], 0xFF]) == len(ids) - 2
    assert state.masks(()).tolist() == before == [rows[0]]
    for row, token in zip(rows, ids[2:], strict=False):
        assert state.masks(()).tolist() == [row] and row[token]
        state.advance([token])


def test_white_space_ends():
    """A model that says nothing but spaces is stopped by the grammar, not by max_tokens."""
    target = scripted_target([], [])
    target.tokenizer = bytewise()
    target.config["vocab_size"] = len(target.tokenizer)
    state = for_json_object()(target)
    spaces = target.tokenizer.encode("{" + " " * 100)
    assert state.admitted(spaces) == 1 + 24


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (None, "must be an object"),
        ({"type": "object", "not": {}}, "not"),
        ({"type": "integer", "minimum": 3, "maximum": 1}, "greater than"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "strng"}, "strng"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"$ref": "https://example.org/schema.json"}, "example.org"),
        ({"type": "string", "pattern": "(?=a)b"}, "regex"),
        ({"type": "string", "not": {}, "x-guidance": {"lenient": True}}, "not"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no finite value"),
    ],
    ids=str,
)
def test_what_cannot_be_enforced_is_refused_before_anything_runs(schema, match):
    with pytest.raises(ConstraintError, match=match) as refusal:
        for_json_schema(schema)
    assert "\n" not in str(refusal.value) and refusal.value.status == 400


def test_a_model_that_cannot_say_what_it_must_is_an_error_and_not_a_wrong_answer(engine):
    """A grammar of its own tokens only: this one wants a mark that is none of them."""
    with pytest.raises(ConstraintError):
        answer(engine, PLAIN, Grammar("start: <|no_such_mark|>\n"))


def test_tokenizers_that_cannot_be_read_are_refused():
    target = scripted_target([1], [5, EOS])
    target.tokenizer._tokenizer = object()
    with pytest.raises(ConstraintError, match="tokenizer"):
        for_json_object()(target)


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for build in (for_json_object, lambda: ToolCalls([], True)(scripted_target([], []))):
        with pytest.raises((ExtraMissing, ConstraintError)) as refusal:
            build()
    with pytest.raises(ExtraMissing, match=r"pip install 'mlx-dspark\[structured\]'") as refusal:
        for_json_object()
    assert refusal.value.status == 400


CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "celsius": {"type": "boolean"}},
    "required": ["city", "celsius"],
    "additionalProperties": False,
}


@pytest.mark.real
def test_the_demo_pair_answers_in_json_with_its_drafts_on(demo_engine):
    prompt = demo_engine.encode_chat("Describe an animal as JSON, with its name, kind and age.")
    constraint = for_json_schema(PERSON)
    plain = answer(demo_engine, PLAIN, constraint, 120, prompt)
    last = answer(demo_engine, SpeculationOptions("dspark", cap=5), constraint, 120, prompt)
    assert last.tokens == plain.tokens and last.reason == "stop"
    jsonschema.validate(json.loads(last.text), PERSON)
    assert last.statistics.accepted > 0
    assert last.statistics.target_forwards < plain.statistics.target_forwards


@pytest.mark.real
def test_the_demo_pair_calls_a_tool_after_thinking(demo_engine, monkeypatch):
    from mlx_lm.tool_parsers import json_tools

    tokenizer = demo_engine._pair.target.tokenizer
    for name, value in {
        "tool_parser": json_tools.parse_tool_call,
        "tool_call_start": json_tools.tool_call_start,
        "tool_call_end": json_tools.tool_call_end,
        "think_start_tokens": (7,),
        "think_end_tokens": (8,),
    }.items():
        monkeypatch.setattr(tokenizer, f"_{name}", value)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}]
    constraint = Thinking(12, opened=True, then=ToolCalls(tools, required=True, parallel=False))
    prompt = demo_engine.encode_chat("What is the weather in Paris?")
    plain = answer(demo_engine, PLAIN, constraint, 80, prompt)
    last = answer(demo_engine, SpeculationOptions("dspark", cap=5), constraint, 80, prompt)
    assert last.tokens == plain.tokens and last.reason == "stop" and last.statistics.accepted > 0
    at = last.tokens.index(8)
    assert at == 12
    text = demo_engine.decode(last.tokens[at + 1 :])
    inner = text.removeprefix("<tool_call>").removesuffix("</tool_call>")
    call = json_tools.parse_tool_call(inner)
    assert call["name"] == "weather"
    jsonschema.validate(call["arguments"], CITY)
