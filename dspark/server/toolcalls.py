"""How model families write tool calls: mlx-lm's parsers, and what they need to be safe with any text a model writes."""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from dspark.server.order import Tool

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Parser = Callable[[str, Any], Any]


class MalformedCall(ValueError):
    """Text in a call's place that is no call of a declared tool."""


@dataclass(frozen=True)
class _Family:
    """Where free text stands in a family's calls.

    `tags`: between an `opens` tag and the `closes` that one of `follows` comes after. `pairs`: between two `closes`.
    `quotes`: in quoted strings. `unknown`: nobody knows. `closed` tells a call that is whole from one that was cut
    off; None where nothing does. `typed` says that the format itself tells a number from a text.
    """

    style: Literal["tags", "pairs", "quotes", "unknown"] = "quotes"
    opens: str = ""
    closes: str = ""
    follows: str = ""
    closed: str | None = r"[}\]]\s*\Z"
    typed: bool = True


_FAMILIES = {
    "json_tools": _Family(),
    "mistral": _Family(),
    "pythonic": _Family(),
    "qwen3_coder": _Family(
        "tags",
        r"<parameter=[^<>\s]+>",
        "</parameter>",
        r"<parameter=|</function>\s*\Z",
        r"</function>\s*\Z",
        typed=False,
    ),
    "minimax_m2": _Family(
        "tags",
        r"<parameter name=[^>]+>",
        "</parameter>",
        r"<parameter name=|</invoke>\s*(?:<invoke\b|\Z)",
        r"</invoke>\s*\Z",
        typed=False,
    ),
    "minicpm5": _Family("tags", r"<param\s+name\s*=[^>]*>", "</param>", r"<param\s|\Z", None, typed=False),
    "muse_spark": _Family(
        "tags",
        r"<atem:parameter\b[^>]*>",
        "</atem:parameter>",
        r"<atem:parameter\b|</atem:invoke>\s*(?:<atem:invoke\b|\Z)",
        r"</atem:invoke>\s*\Z",
        typed=False,
    ),
    "glm47": _Family("tags", "<arg_value>", "</arg_value>", r"<arg_key>|\Z", None, typed=False),
    "longcat": _Family(
        "tags", "<longcat_arg_value>", "</longcat_arg_value>", r"<longcat_arg_key>|\Z", None, typed=False
    ),
    "kimi_k3": _Family(
        "tags",
        r"<\|open\|>argument(?:(?!<\|sep\|>).)*<\|sep\|>",
        "<|close|>argument<|sep|>",
        r"<\|open\|>argument|<\|close\|>call<\|sep\|>\s*(?:<\|open\|>call|\Z)",
        r"<\|close\|>call<\|sep\|>\s*\Z",
    ),
    "gemma4": _Family("pairs", closes='<|"|>'),
    "function_gemma": _Family("pairs", closes="<escape>", typed=False),
    "kimi_k2": _Family(closed=r"<\|tool_call_end\|>\s*\Z"),
}


@dataclass(frozen=True)
class ToolFormat:
    """One family's calls: text between `start` and `end` (empty: to the end of the answer) is for `parse`."""

    family: str
    start: str
    end: str
    parse: Parser

    @classmethod
    def of(cls, tokenizer: "TokenizerWrapper") -> Self | None:
        """The format that mlx-lm found for a model, or None."""
        if not tokenizer.has_tool_calling:
            return None
        family = tokenizer.tool_parser.__module__.rsplit(".", 1)[-1]
        return cls(family, tokenizer.tool_call_start, tokenizer.tool_call_end or "", tokenizer.tool_parser)

    @classmethod
    def plain(cls) -> Self:
        """The commonest format, for models whose template knows no tools and which are told of them in words."""
        from mlx_lm.tool_parsers import json_tools

        return cls("json_tools", json_tools.tool_call_start, json_tools.tool_call_end, json_tools.parse_tool_call)

    def at_rest(self, text: str) -> bool:
        """Whether `text`, the beginning of a call, stands outside of any value: an end marker here is one."""
        family = self._family
        if family.style == "unknown":
            return True
        if family.style == "pairs":
            return text.count(family.closes) % 2 == 0
        if family.style == "quotes":
            return not re.search("[\"']", _QUOTED.sub("", text))
        return not self._values(text)[1]

    def whole(self, text: str) -> bool:
        """Whether a call that has no end marker is complete all the same, and was not cut off."""
        closed = self._family.closed
        return closed is not None and self.at_rest(text) and re.search(closed, text) is not None

    def calls(self, text: str, tools: Sequence[Tool]) -> list[tuple[str, str]]:
        """Name and arguments (a JSON object as text) of each call in `text`.

        Raises:
            MalformedCall: it holds none, or one that no declared tool answers to.
        """
        declared = {tool.name: tool for tool in tools}
        found = self._parsed(text, [tool.as_function() for tool in tools])
        calls = []
        for call in found if isinstance(found, list) else [found]:
            name = call.get("name") if isinstance(call, dict) else None
            if not isinstance(name, str) or name not in declared:
                raise MalformedCall(f"no call of a declared tool: {name!r}")
            arguments = _object(_unshielded(call.get("arguments", call.get("parameters"))))
            if not self._family.typed:
                arguments = _typed_object(arguments, declared[name].parameters)
            try:
                calls.append((name, _paired(json.dumps(arguments, ensure_ascii=False, allow_nan=False))))
            except (TypeError, ValueError, RecursionError) as error:
                raise MalformedCall(f"arguments that JSON cannot hold: {error}") from error
        if not calls:
            raise MalformedCall("no call")
        return calls

    @property
    def _family(self) -> _Family:
        return _FAMILIES.get(self.family, _Family("unknown", closed=None))

    def _values(self, text: str) -> tuple[list[tuple[int, int]], bool]:
        """Where the values between tags begin and end, and whether one more is open at the end of `text`."""
        family = self._family
        follows = re.compile(rf"\s*(?:{family.follows})")
        spans: list[tuple[int, int]] = []
        at = 0
        while opened := re.compile(family.opens).search(text, at):
            end = text.find(family.closes, opened.end())
            while end >= 0 and not follows.match(text, end + len(family.closes)):
                end = text.find(family.closes, end + 1)
            if end < 0:
                return spans, True
            spans.append((opened.end(), end))
            at = end + len(family.closes)
        return spans, False

    def _parsed(self, text: str, functions: list[dict[str, Any]]) -> Any:
        shielded = self._shielded(text)
        for declared in (functions, None):  # without types where a value is not of its declared one
            try:
                return self.parse(shielded, declared)
            except Exception:  # whatever a model's text makes a parser raise
                continue
        return _lenient(text)

    def _shielded(self, text: str) -> str:
        """Hide from the parser what looks like structure within a value."""
        family = self._family
        if family.style == "tags":
            pieces, at = [], 0
            for start, end in self._values(text)[0]:
                pieces += [text[at:start], re.sub(r"<(?=/?[\w|])", _SHIELD, text[start:end])]
                at = end
            return "".join([*pieces, text[at:]])
        if family.style == "pairs":
            texts = enumerate(text.split(family.closes))
            return family.closes.join(re.sub("[{}]", _braced, piece) if at % 2 else piece for at, piece in texts)
        return text


_QUOTED = re.compile(r""" "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' """, re.DOTALL | re.VERBOSE)
# Characters that no text may hold.
_SHIELD = "\ufdd0"
_BRACES = {"{": "\ufdd1", "}": "\ufdd2"}
_SHIELDED = {_SHIELD: "<", **{hidden: brace for brace, hidden in _BRACES.items()}}


def _braced(match: re.Match[str]) -> str:
    return _BRACES[match[0]]


def _unshielded(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub("[\ufdd0-\ufdd2]", lambda m: _SHIELDED[m[0]], value)
    if isinstance(value, list):
        return [_unshielded(item) for item in value]
    if isinstance(value, dict):
        return {_unshielded(key): _unshielded(item) for key, item in value.items()}
    return value


def _paired(text: str) -> str:
    """Halves of characters joined; what is left of them replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _object(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str) and arguments.strip():
        arguments = _lenient(arguments)
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, dict):
        raise MalformedCall(f"arguments are no object but {type(arguments).__name__}")
    return arguments


def _lenient(text: str) -> Any:
    """JSON as models write it: stray backslashes, trailing commas, line breaks in strings, Python's quotes.

    Raises:
        MalformedCall: it is none of these.
    """
    text = text.strip()
    escaped = re.sub(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})', r"\\\\", re.sub(r"\\\\", "\ufdd3", text)).replace(
        "\ufdd3", "\\\\"
    )
    pruned = re.sub(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])', lambda m: m[1] or "", escaped, flags=re.DOTALL)
    for read, source in ((_json, text), (_json, pruned), (ast.literal_eval, text)):
        try:
            return read(source)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    raise MalformedCall("no JSON")


def _json(text: str) -> Any:
    return json.loads(text, strict=False)


def _typed_object(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the schema declares them, for formats in which every value is text."""
    properties = schema.get("properties")
    declared = properties if isinstance(properties, Mapping) else {}
    return {name: _typed(value, _types(declared.get(name))) for name, value in arguments.items()}


def _types(schema: Any) -> frozenset[str]:
    """The JSON types that a schema admits; empty means any."""
    if not isinstance(schema, Mapping):
        return frozenset()
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset([declared])
    if isinstance(declared, list):
        return frozenset(name for name in declared if isinstance(name, str))
    if isinstance(schema.get("enum"), list):
        return frozenset(_type(value) for value in schema["enum"])
    members = [_types(each) for key in ("anyOf", "oneOf") for each in schema.get(key) or ()]
    return frozenset().union(*members) if members and all(members) else frozenset()


def _typed(value: Any, types: frozenset[str]) -> Any:
    if not types or _fits(value, types):
        return value
    if "string" in types:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        try:
            read = json.loads(value.lower() if "boolean" in types else value)
        except ValueError:
            return value
        if isinstance(read, float) and read.is_integer() and "number" not in types:
            read = int(read)
        return read if _fits(read, types) else value
    return value


def _fits(value: Any, types: frozenset[str]) -> bool:
    kind = _type(value)
    return kind in types or (kind == "integer" and "number" in types)


def _type(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"
