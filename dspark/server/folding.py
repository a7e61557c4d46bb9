"""Conversations in a form that a strict template renders too: nothing is lost, some of it moves to a neighbour."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dspark.server.order import Call, Message, Tool
from dspark.server.template import Calls, Traits, Turn

_TOOLS_IN_WORDS = """You may call these tools, one JSON description a line:
{tools}

To call one, write
<tool_call>
{{"name": "its name", "arguments": {{"its": "arguments"}}}}
</tool_call>"""


def fold(messages: Sequence[Message], traits: Traits, described: Sequence[Tool] = ()) -> list[Turn]:
    """The turns for a template with `traits`. `described` tools are told of in words."""
    lead, rest = _lead(messages, described)
    if not traits.system_anywhere:
        rest = _without_systems(rest)
    rest = _without_orphans(rest)
    if traits.calls is None:
        rest = [_in_words(message) for message in rest]
    elif not traits.user_after_tool:
        rest = _results_with_text(rest)
    if lead and (not traits.system or not rest):  # many templates show a system turn with the user's only
        rest = _before(Message("user", lead), rest)
        lead = ""
    if not traits.any_order:
        rest = _alternating(rest)
    turns = [_turn(message, traits.calls) for message in rest]
    return [{"role": "system", "content": lead}, *turns] if lead else turns


def _lead(messages: Sequence[Message], described: Sequence[Tool]) -> tuple[str, list[Message]]:
    """The text of all system turns at the start, and the turns after them."""
    count = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    texts = [message.content for message in messages[:count] if message.content]
    if described:
        lines = (json.dumps(tool.as_function()["function"], ensure_ascii=False) for tool in described)
        texts.append(_TOOLS_IN_WORDS.format(tools="\n".join(lines)))
    return "\n\n".join(texts), list(messages[count:])


def _without_systems(messages: Iterable[Message]) -> list[Message]:
    """Each system turn in the user turn after it, or before it, or as one."""
    folded: list[Message] = []
    pending: list[str] = []
    for message in messages:
        if message.role == "system":
            pending.append(message.content)
            continue
        if pending and message.role == "user":
            message, pending = replace(message, content=_joined(*pending, message.content)), []
        elif pending:
            folded, pending = _after(folded, _joined(*pending)), []
        folded.append(message)
    return _after(folded, _joined(*pending)) if pending else folded


def _after(messages: list[Message], text: str) -> list[Message]:
    """`text` as the end of the last turn if that is a user's, else as a user turn."""
    if messages and messages[-1].role == "user":
        return [*messages[:-1], replace(messages[-1], content=_joined(messages[-1].content, text))]
    return [*messages, Message("user", text)]


def _before(message: Message, messages: list[Message]) -> list[Message]:
    """A user turn in front, joined with the first if that is a user's."""
    if messages and messages[0].role == "user":
        return [replace(message, content=_joined(message.content, messages[0].content)), *messages[1:]]
    return [message, *messages]


def _without_orphans(messages: Iterable[Message]) -> list[Message]:
    """Results of calls that nobody made become words of the user's."""
    open_ids: set[str | None] = set()
    folded = []
    for message in messages:
        if message.role == "assistant":
            open_ids = {call.id for call in message.calls}
        elif message.role == "tool" and message.answers not in open_ids:
            message = _in_words(message)
        folded.append(message)
    return folded


def _in_words(message: Message) -> Message:
    """Calls and results as text."""
    if message.role == "tool":
        return Message("user", f"<tool_response>\n{message.content}\n</tool_response>")
    if not message.calls:
        return message
    written = (
        json.dumps({"name": call.name, "arguments": _object(call)}, ensure_ascii=False) for call in message.calls
    )
    texts = (f"<tool_call>\n{call}\n</tool_call>" for call in written)
    return replace(message, content=_joined(message.content, *texts), calls=())


def _results_with_text(messages: Iterable[Message]) -> list[Message]:
    """What a user says right after a tool's result becomes the end of it."""
    folded: list[Message] = []
    for message in messages:
        if message.role == "user" and folded and folded[-1].role == "tool":
            folded[-1] = replace(folded[-1], content=_joined(folded[-1].content, message.content))
        else:
            folded.append(message)
    return folded


def _alternating(messages: Iterable[Message]) -> list[Message]:
    """User and assistant in turn, a user first; tool turns stay where they are."""
    folded: list[Message] = []
    for message in messages:
        last = folded[-1] if folded else None
        if last is None and message.role == "assistant":
            folded.append(Message("user"))
        if last is not None and last.role == message.role != "tool" and not last.calls:
            joined = _joined(last.content, message.content)
            reasoning = _joined(last.reasoning, message.reasoning)
            folded[-1] = replace(last, content=joined, reasoning=reasoning, calls=message.calls)
        else:
            folded.append(message)
    return folded


def _turn(message: Message, calls: Calls | None) -> Turn:
    """As templates read it."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.name:
        turn["name"] = message.name
    if calls is not None and message.calls:
        turn["tool_calls"] = [
            {
                "id": _id(call.id, calls),
                "type": "function",
                "function": {"name": call.name, "arguments": _object(call) if calls.objects else _text(call)},
            }
            for call in message.calls
        ]
    if calls is not None and message.answers is not None:
        turn["tool_call_id"] = _id(message.answers, calls)
    return turn


def _id(given: str, calls: Calls) -> str:
    if not calls.short_ids or (len(given) == 9 and given.isalnum()):
        return given
    return hashlib.sha256(given.encode()).hexdigest()[:9]


def _object(call: Call) -> dict[str, Any]:
    """The arguments as an object; what is none is kept as text in one."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        value = call.arguments
    return value if isinstance(value, dict) else {"raw": call.arguments}


def _text(call: Call) -> str:
    return json.dumps(_object(call), ensure_ascii=False)


def _joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)
