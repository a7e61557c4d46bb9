"""Answers that follow a grammar, by llguidance (the optional extra `structured`).

`for_json_schema` and `for_json_object` make a `Request.constraint`; `dspark.decoding.toolgrammar.ToolCalls` is one for
calls of tools. The grammar says when an answer is whole: then only an end-of-sequence token is left, unless more may
follow.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import mlx.core as mx

from dspark.decoding.schema import refuse_senseless
from dspark.errors import ConstraintDeadEnd, ConstraintError, ExtraMissing

if TYPE_CHECKING:
    import llguidance

    from dspark.targets.target import Target

# White space may be anything between two tokens of JSON, but not without end: small models fall into it.
_JSON_OPTIONS = {"whitespace_pattern": r"[ \t\r\n]{1,24}", "lenient": False, "coerce_one_of": False}

_tokenizers: "WeakKeyDictionary[Target, llguidance.LLTokenizer]" = WeakKeyDictionary()


def for_json_object() -> "Grammar":
    """Any JSON object.

    Raises:
        ExtraMissing: llguidance is not installed.
    """
    return for_json_schema({"type": "object"})


def for_json_schema(schema: Any) -> "Grammar":
    """A JSON value that is valid under `schema`, a JSON schema as a mapping; its properties come in their order.

    Raises:
        ConstraintError: the schema is none, contradicts itself, or asks for what cannot be enforced.
        ExtraMissing: llguidance is not installed.
    """
    checked(schema)
    return Grammar(f"start: {json_rule(schema)}\n")


def json_rule(schema: Mapping[str, Any], options: Mapping[str, Any] = MappingProxyType({})) -> str:
    """`schema` as an expression inside a grammar; `options` are llguidance's for JSON."""
    return f"%json {json.dumps({**schema, 'x-guidance': {**_JSON_OPTIONS, **options}})}"


def checked(schema: Any, what: str = "the JSON schema") -> Mapping[str, Any]:
    """`schema`, if it can be enforced.

    Raises:
        As `for_json_schema`, with `what` in the message.
    """
    refuse_senseless(schema, what)
    failed, messages = library().LLMatcher.validate_grammar_with_warnings(f"start: {json_rule(schema)}\n")
    if failed:
        raise ConstraintError(f"{what} cannot be enforced: {_first_line(messages[0])}; change or leave out that part")
    return schema


def library() -> Any:
    """The llguidance module.

    Raises:
        ExtraMissing: it is not installed.
    """
    try:
        import llguidance
        import llguidance.hf
    except ImportError as error:
        raise ExtraMissing(
            "structured output needs an optional package; install it with: pip install 'mlx-dspark[structured]'"
        ) from error
    return llguidance


def tokenizer_of(target: "Target") -> "llguidance.LLTokenizer":
    """The target's tokenizer as llguidance reads it, made once a target (about a second).

    Raises:
        ConstraintError: it is of a kind that llguidance cannot read.
        ExtraMissing: llguidance is not installed.
    """
    if target not in _tokenizers:
        hf = library().hf
        try:
            width = max(target.vocabulary, len(target.tokenizer))
            _tokenizers[target] = hf.from_tokenizer(
                target.tokenizer._tokenizer, n_vocab=width, eos_token=sorted(target.eos)
            )
        except Exception as error:  # whatever an unusual tokenizer makes the library raise
            raise ConstraintError(
                f"structured output is not possible with this model's tokenizer ({_first_line(str(error))}); "
                "ask without it, or load another model"
            ) from error
    return _tokenizers[target]


@dataclass(frozen=True)
class Grammar:
    """A grammar in llguidance's Lark, for any number of answers."""

    source: str

    def __call__(self, target: "Target") -> "GrammarState":
        """The state for one answer.

        Raises:
            ConstraintError: the grammar cannot be enforced with this target.
            ExtraMissing: llguidance is not installed.
        """
        tokenizer = tokenizer_of(target)
        matcher = library().LLMatcher(tokenizer, self.source, log_level=0)
        if matcher.is_error():
            raise ConstraintError(f"this cannot be enforced: {_first_line(matcher.get_error())}; ask for less")
        return GrammarState(matcher, target.vocabulary)


class GrammarState:
    """Where an answer stands in its grammar."""

    def __init__(self, matcher: "llguidance.LLMatcher", vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def idle(self, tokens: int) -> bool:
        return False

    def admitted(self, draft: Sequence[int]) -> int:
        return int(self._matcher.validate_tokens(list(draft)))

    def masks(self, draft: Sequence[int]) -> mx.array:
        rows = [self._matcher.compute_bitmask()]
        for token in draft:
            self._matcher.consume_token(token)
            rows.append(self._matcher.compute_bitmask())
        self._matcher.rollback(len(draft))
        words = mx.array(cast(Any, memoryview(b"".join(rows)).cast("I"))).reshape(len(rows), -1, 1)
        bits = (words >> mx.arange(32, dtype=mx.uint32)) & 1
        return bits.reshape(len(rows), -1)[:, : self._vocabulary].astype(mx.bool_)

    def advance(self, tokens: Sequence[int]) -> None:
        # One by one: a finished matcher takes the end of a sequence in this way only.
        if not all(self._matcher.consume_token(token) for token in tokens):
            raise ConstraintDeadEnd(
                "no token of this model can continue the answer as its grammar demands "
                f"({_first_line(self._matcher.get_error())}); ask for something simpler"
            )


def _first_line(message: str) -> str:
    details = message.rpartition("failed to compile JSON schema:")[2].strip()
    return details.partition("\n")[0].rstrip(".:; ") or "no details"
