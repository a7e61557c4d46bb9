"""Schemas that make no sense are refused before anything is compiled."""

import pytest

from dspark.decoding.schema import MAX_SCHEMA_BYTES, refuse_senseless
from dspark.errors import ConstraintError

ITSELF = {"$ref": "#"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
LIST = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
DOUBLING = {f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 2} for i in range(60)}


def deep(levels):
    schema = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (None, "must be an object, not NoneType"),
        ([], "must be an object, not list"),
        ("{}", "must be an object, not str"),
        ({"minimum": float("nan")}, "plain JSON"),
        ({"enum": {1}}, "plain JSON"),
        ({"enum": ["x" * MAX_SCHEMA_BYTES]}, "make it smaller"),
        ({"type": "object", "properties": {"a": ITSELF}, "required": ["a"]}, "no finite value"),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, "no finite value"),
        ({"type": "array", "minItems": 1, "items": ITSELF}, "no finite value"),
        ({"allOf": [{"type": "object"}, ITSELF]}, "no finite value"),
        ({"$ref": "#/$defs/n0", "$defs": {**DOUBLING, "n60": {"$ref": "#/$defs/n0"}}}, "no finite value"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_senseless_schemas_are_refused_in_one_line(schema, match):
    with pytest.raises(ConstraintError, match=match) as refusal:
        refuse_senseless(schema, "the schema of x")
    assert str(refusal.value).startswith("the schema of x ") and "\n" not in str(refusal.value)
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    "schema",
    [
        {},
        deep(100),
        {"type": "object", "properties": {"a": ITSELF}},
        {"type": "array", "items": ITSELF},
        {"$ref": "#/$defs/node", "$defs": {"node": {**LIST, "required": ["next"]}}},
        {"$ref": "#/$defs/n0", "$defs": {**DOUBLING, "n60": {"type": "null"}}},
        {"$ref": "https://elsewhere/schema.json"},
        {"$ref": "#/$defs/missing"},
    ],
    ids=lambda value: str(value)[:40],
)
def test_recursion_that_can_end_is_fine(schema):
    refuse_senseless(schema, "the schema")


def test_a_schema_deeper_than_the_stack_is_refused():
    with pytest.raises(ConstraintError, match="nested too deeply"):
        refuse_senseless(deep(5000), "the schema")
