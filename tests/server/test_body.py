"""The JSON in a request's body."""

import json

import pytest

from dspark.errors import BadRequest, ValidationFailed
from dspark.server.body import DEPTH_LIMIT, json_object


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"null", b'"x"', b"{'a': 1}", b'{"a": \xff}', b"{} {}"])
def test_what_is_no_object_is_refused(body):
    with pytest.raises(BadRequest):
        json_object(body)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused_by_name(number):
    """X6, E2"""
    with pytest.raises(ValidationFailed, match="body -> temperature: ") as caught:
        json_object(b'{"messages": [{"role": "user", "content": "x"}], "temperature": %s}' % number.encode())
    assert caught.value.param == "temperature"


def test_a_number_deep_inside_is_named_by_its_whole_path():
    with pytest.raises(ValidationFailed, match="body -> tools -> 1 -> x: ") as caught:
        json_object(b'{"tools": [0, {"x": NaN}]}')
    assert caught.value.param == "tools"


def nested(depth):
    """An object that holds arrays, `depth` containers in all."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_depth_is_bounded():
    assert json_object(nested(DEPTH_LIMIT))
    for depth in (DEPTH_LIMIT + 1, 5_000, 1_000_000):
        with pytest.raises(BadRequest, match="nested"):
            json_object(nested(depth))


def test_an_integer_of_thousands_of_digits_is_refused():
    with pytest.raises(BadRequest):
        json_object(b'{"seed": ' + b"1" * 5000 + b"}")


def test_half_a_surrogate_pair_becomes_the_replacement_character():
    body = json_object(rb'{"messages": [{"content": "a\ud83d b\ude00 \ud83d\ude00"}]}')
    assert body == {"messages": [{"content": "a\ufffd b\ufffd \U0001f600"}]}
    with pytest.raises(BadRequest):
        json_object(rb'{"\ud83d": 1}')


def test_a_hundred_thousand_messages_are_read():
    """O7"""
    messages = [{"role": "user", "content": "x"}] * 100_000
    assert len(json_object(json.dumps({"messages": messages}).encode())["messages"]) == 100_000
