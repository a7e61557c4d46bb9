"""What a Responses request is made of: input items and tools, and the messages and functions they come to."""

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from dspark.errors import BadRequest
from dspark.server.dialects.asked import arguments_text, no_pictures, unique
from dspark.server.dialects.messages import UNSEEN
from dspark.server.dialects.openai import function_tool
from dspark.server.dialects.wire import Schema, StrOrList, Wire, invalid
from dspark.server.order import Call, Message, Role, Tool

_log = logging.getLogger(__name__)
_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_ONE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class ContentField(Wire):
    """A part of a message, of an output or of reasoning."""

    type: str = "input_text"
    text: str | None = None
    refusal: str | None = None


class ToolField(Wire):
    """A tool; which fields it has depends on its type."""

    type: str
    name: str | None = Field(None, min_length=1)
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    tools: "list[ToolField] | None" = None


class ItemField(Wire):
    """An input item; which fields it has depends on its type."""

    type: str = "message"
    role: str | None = None
    content: StrOrList[ContentField] | None = None
    summary: list[ContentField] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: str | None = None
    output: Any = None
    tools: list[ToolField] | None = None


def flat_name(namespace: str | None, name: str) -> str:
    """The one name that the model knows a tool of a namespace by."""
    return f"{namespace.rstrip('_')}__{name}" if namespace else name


def known_name(name: str, namespace: str | None, tools: Sequence[Tool]) -> str:
    """The name that the model knows a tool by, which a client may name with its namespace or without."""
    flat = flat_name(namespace, name)
    if any(tool.name == flat for tool in tools):
        return flat
    return next((tool.name for tool in tools if tool.wire_name == name and namespace is None), flat)


def tools_of(declared: Sequence[ToolField], items: Sequence[ItemField]) -> tuple[Tool, ...]:
    """All tools of a request, those of `additional_tools` items among them; what cannot be called here is left out."""
    added = [tool for item in items if item.type == "additional_tools" for tool in item.tools or ()]
    return unique(tool for at, each in enumerate([*declared, *added]) for tool in _tools(each, at, None))


def _tools(declared: ToolField, at: int, namespace: str | None) -> Iterable[Tool]:
    if declared.type == "namespace":
        for tool in declared.tools or ():
            yield from _tools(tool, at, declared.name)
    elif declared.type not in ("function", "custom"):
        _log.info("tool of type %s is left out: only functions and custom tools can be called here", declared.type)
    elif declared.name is None:
        raise invalid([(("tools", str(at), "name"), "Field required")])
    else:
        name = flat_name(namespace, declared.name)
        if declared.type == "function":
            made = function_tool(name, declared.description, declared.parameters, declared.strict)
            yield Tool(
                name, made.description, made.parameters, made.strict, wire_name=declared.name, namespace=namespace
            )
        else:
            yield Tool(name, _described(declared), _ONE_TEXT, custom=True, wire_name=declared.name, namespace=namespace)


def _described(declared: ToolField) -> str:
    """A custom tool's description, with the grammar that its input must follow."""
    grammar = declared.format or {}
    lines = [declared.description or ""]
    if isinstance(grammar.get("definition"), str):
        lines.append(f"The input must follow this {grammar.get('syntax', '')} grammar:\n{grammar['definition']}")
    return "\n".join(line for line in lines if line)


def messages_of(items: Sequence[ItemField], tools: Sequence[Tool]) -> tuple[Message, ...]:
    """The turns that the items tell. What the assistant said, thought and called in a row is one turn.

    Raises:
        BadRequest: a role is unknown, or something is no text.
    """
    turns: list[Message] = []
    said = _Turn()
    names: dict[str, str] = {}
    for at, item in enumerate(items):
        where = f"input.{at}"
        match item.type:
            case "reasoning":
                parts = item.content if isinstance(item.content, list) and item.content else item.summary or ()
                said.reasoning += [part.text for part in parts if part.text]
            case "function_call" | "custom_tool_call" if item.name:
                call = _call(item, at, tools)
                names[call.id] = call.name
                said.calls.append(call)
            case "message" if _role(item.role, where) == "assistant":
                said.texts.append(_text(item.content, where))
            case "message":
                turns += [*said.flush(), Message(_role(item.role, where), _text(item.content, where))]
            case "function_call_output" | "custom_tool_call_output":
                answered = item.call_id or ""
                result = Message("tool", _output(item.output), answers=answered, name=names.get(answered))
                turns += [*said.flush(), result]
            case _:
                pass
    return (*turns, *said.flush())


@dataclass
class _Turn:
    """What the assistant did since somebody else's turn."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def flush(self) -> list[Message]:
        """The turn, if there was one; a new one begins."""
        done = Message("assistant", "\n".join(self.texts), "\n".join(self.reasoning), tuple(self.calls))
        for pieces in (self.texts, self.reasoning, self.calls):
            pieces.clear()
        return [done] if done.content or done.reasoning or done.calls else []


def _role(role: str | None, where: str) -> Role:
    if role not in _ROLES:
        raise BadRequest(f"{where}: unknown role {role!r}; give one of {', '.join(_ROLES)}", where)
    return _ROLES[role]


def _call(item: ItemField, at: int, tools: Sequence[Tool]) -> Call:
    name = known_name(item.name or "", item.namespace, tools)
    if item.type == "custom_tool_call":
        arguments = json.dumps({"input": item.input or ""}, ensure_ascii=False)
    else:
        arguments = arguments_text(item.arguments)
    return Call(item.call_id or item.id or f"call_{at}", name, arguments)


def _text(content: str | list[ContentField] | None, where: str) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = []
    for at, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if text is not None:
            texts.append(text)
        elif part.type in ("input_image", "input_file", "input_audio"):
            raise no_pictures(part.type, f"{where}.content.{at}")
    return "\n".join(texts)


def _output(output: Any) -> str:
    """What a tool gave back, as text."""
    if isinstance(output, list):
        parts = [part for part in output if isinstance(part, dict)]
        texts = [UNSEEN if part.get("type") == "input_image" else part.get("text") for part in parts]
        return "\n".join(text for text in texts if isinstance(text, str))
    return arguments_text(output) if output is not None else ""
