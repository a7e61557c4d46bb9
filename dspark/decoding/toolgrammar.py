"""Calls of tools as a grammar: `tool_choice` required or named, and strict tools under auto."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark.decoding.grammar import Grammar, GrammarState, checked, json_rule, tokenizer_of
from dspark.decoding.toolmarkup import Markup, markup_of
from dspark.errors import ConstraintError

if TYPE_CHECKING:
    from dspark.targets.target import Target

_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
_ANYTHING = {"type": "object"}
_ANNOTATIONS = {"type", "title", "description", "default", "examples", "deprecated", "enum", "const", "anyOf"}
_BARE_WORD = re.compile(r"[^\s<>\"'=:,(){}\[\]|]+")
# Strings of JSON with these escapes mean the same in Python.
_PYTHON_STRINGS = {"json_allowed_escapes": 'nrbtf\\"'}


@dataclass(frozen=True)
class ToolCalls:
    """Calls of `tools` (as chat templates take them: `{"type": "function", "function": {name, parameters, strict}}`).

    `required` makes the answer begin with a call and be nothing but calls; otherwise text may come before and after,
    and no call at all. `only` names the one tool that may be called, once. `parallel` allows more than one call.
    A strict tool's arguments are valid under its parameters; those of others as far as that can be enforced.
    """

    tools: Sequence[Mapping[str, Any]]
    required: bool
    only: str | None = None
    parallel: bool = True

    def __call__(self, target: "Target") -> GrammarState:
        """The state for one answer.

        Raises:
            ConstraintError: the model's calls cannot be enforced, `only` is none of the tools, or a strict tool's
                parameters cannot be enforced.
            ExtraMissing: llguidance is not installed.
        """
        functions = [tool["function"] for tool in self.tools]
        if self.only is not None:
            functions = [function for function in functions if function["name"] == self.only]
        if not functions:
            wanted = f"tool_choice names {self.only}, which is none" if self.only is not None else "a call needs one"
            raise ConstraintError(f"{wanted} of the request's tools; give it in tools")
        source = _Writer(markup_of(target.tokenizer), target).write(functions, self.required, self._repeated)
        return Grammar(source)(target)

    @property
    def _repeated(self) -> bool:
        return self.parallel and self.only is None


class _Writer:
    """Writes one grammar. Rules are collected in `_rules`; the other methods return expressions."""

    def __init__(self, markup: Markup, target: "Target") -> None:
        self._markup = markup
        tokenizer = tokenizer_of(target)
        added = {token.content: number for number, token in target.tokenizer.added_tokens_decoder.items()}
        # Tokens that are no text to the grammar have to be named by number.
        self._marks = {text: number for text, number in added.items() if tokenizer.is_special_token(number)}
        self._start = str(target.tokenizer.tool_call_start)
        self._rules = ["TEXT: /(.|\\n)*/"]

    def write(self, functions: Sequence[Mapping[str, Any]], required: bool, repeated: bool) -> str:
        markup = self._markup
        lead, rest = markup.before.split("NAME")
        rest = " /[0-9]{1,3}/ ".join(map(self._literal, rest.split("INDEX")))
        bodies = " | ".join(self._body(function, rest) for function in functions)
        call = self._rule(f"{self._literal(lead)} ({bodies})")
        more = f"({self._literal(markup.between)} {call})*" if repeated else ""
        opening, closing = markup.section
        if required:
            start = f"{self._literal(opening)} {call} {more} {self._literal(closing)}"
        elif opening:
            start = f"({self._from_text(opening)} {call} {more} {self._literal(closing)})? TEXT"
        else:
            start = f"({self._from_text(lead)} ({bodies})){'*' if repeated else '?'} TEXT"
        return "\n".join([f"start: {start}", *self._rules, ""])

    def _body(self, function: Mapping[str, Any], rest: str) -> str:
        """One call from its name on, `rest` being what stands before the arguments."""
        name, strict = str(function["name"]), function.get("strict") is True
        parameters = function.get("parameters") or _NOTHING
        try:
            checked(parameters, f"the schema of tool {name}")
            arguments = self._arguments(name, parameters, strict)
        except ConstraintError:
            if strict:
                raise
            arguments = self._arguments(name, _ANYTHING, strict)
        written = json.dumps(name)[1:-1] if self._markup.argument is None else _bare(name)
        return self._rule(f"{self._literal(written)} {rest} {arguments} {self._literal(self._markup.after)}")

    def _arguments(self, name: str, parameters: Mapping[str, Any], strict: bool) -> str:
        if self._markup.argument is None:
            return json_rule(parameters)
        properties, required = parameters.get("properties") or {}, parameters.get("required") or ()
        if strict and not set(required) <= set(properties):
            raise ConstraintError(f"tool {name} requires properties that it does not describe; describe them")
        shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
        items = [
            (self._argument(f"{name}.{key}", key, {**shared, **schema}, strict), key in required)
            for key, schema in properties.items()
        ]
        return self._in_order(items)

    def _in_order(self, items: Sequence[tuple[str, bool]]) -> str:
        """The required ones of `items`, any of the others, in order and separated."""
        separator = self._literal(self._markup.separator)
        first, later = '""', '""'
        for item, required in reversed(items):
            options = (f"{item} {later}", f"{separator} {item} {later}")
            first, later = (
                self._rule(options[0] if required else f"{options[0]} | {first}"),
                self._rule(options[1] if required else f"{options[1]} | {later}"),
            )
        return first

    def _argument(self, where: str, key: str, schema: Mapping[str, Any], strict: bool) -> str:
        assert self._markup.argument is not None
        before, after = self._markup.argument
        return self._rule(
            f"{self._literal(before.replace('KEY', _bare(key)))} {self._value(where, schema, strict, after)}"
        )

    def _value(self, where: str, schema: Mapping[str, Any], strict: bool, after: str) -> str:
        """The value of an argument and the mark behind it."""
        values, quotes = self._markup.values, self._literal(self._markup.quotes)
        end = self._literal(after)
        if values in ("json", "python"):
            return f"{json_rule(schema, _PYTHON_STRINGS if values == 'python' else {})} {end}"
        kinds = _kinds(schema)
        if kinds and "string" not in kinds:
            if values == "quoted" and kinds & {"object", "array"}:
                raise ConstraintError(f"{where} is nested, which this model's calls cannot be held to; make it flat")
            return f"{json_rule(schema)} {end}"
        if strict and (surplus := sorted(set(schema) - _ANNOTATIONS)):
            raise ConstraintError(f"{where} has {surplus[0]}, which this model's calls cannot be held to; leave it out")
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if choices:
            words = (
                f"{quotes} {self._literal(c)} {quotes}" if isinstance(c, str) else self._literal(json.dumps(c))
                for c in choices
            )
            return f"({' | '.join(words)}) {end}"
        return f"{quotes} {self._until(self._markup.quotes + after)}"

    def _until(self, text: str) -> str:
        """Any text, up to and with the first `text`."""
        first, *rest = self._pieces(text)
        if first in self._marks:
            return f"TEXT {self._literal(text)}"
        rule = f"r{len(self._rules)}"
        self._rules.append(f"{rule}[lazy]: /(.|\\n)*/ {json.dumps(first)}")
        return f"{rule} {self._literal(''.join(rest))}"

    def _from_text(self, opening: str) -> str:
        """Any text, and `opening` from where the model begins a call on."""
        if len(self._pieces(self._start)) > 1:
            raise ConstraintError("strict tools need tool_choice required with this model; auto cannot be enforced")
        return f"{self._until(self._start)} {self._literal(opening.removeprefix(self._start))}"

    def _rule(self, body: str) -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _literal(self, text: str) -> str:
        pieces = self._pieces(text)
        return " ".join(f"<[{self._marks[p]}]>" if p in self._marks else json.dumps(p) for p in pieces) or '""'

    def _pieces(self, text: str) -> list[str]:
        """`text` cut at the marks in it."""
        marks = "|".join(re.escape(mark) for mark in sorted(self._marks, key=len, reverse=True))
        return [piece for piece in (re.split(f"({marks})", text) if marks else [text]) if piece]


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The types that a value may have, where that can be told."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return set(kind)
    branches = schema.get("anyOf")
    return set().union(*map(_kinds, branches)) if branches and all(map(_kinds, branches)) else set()


def _bare(word: str) -> str:
    if not _BARE_WORD.fullmatch(word):
        raise ConstraintError(f"the name {word!r} cannot stand in this model's calls; use letters, digits, _ and -")
    return word
