"""Anthropic messages, and what `count_tokens` reads of them."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from dspark.errors import BadRequest
from dspark.server.dialects.asked import (
    Asked,
    EffortField,
    Mode,
    arguments_text,
    choose,
    no_pictures,
    stop_words,
    unique,
)
from dspark.server.dialects.openai import function_tool
from dspark.server.dialects.reply import Context, Frame
from dspark.server.dialects.wire import Schema, StrOrList, Wire
from dspark.server.envelope import error_object
from dspark.server.order import EFFORTS, Call, Message, Order, ResponseFormat
from dspark.server.parts import Content, Ending, Part, Reasoning, Scores, ToolCall

UNSEEN = "[an image that the model cannot see: it reads text only]"
_BILLING = re.compile(r"^x-anthropic-billing-header:[^\n]*(?:\n|\Z)", re.MULTILINE)
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "cancelled": "max_tokens",
    "tool_calls": "tool_use",
    "stop_sequence": "stop_sequence",
}
_MODES: dict[str, Mode] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


class BlockField(Wire):
    """One block of a message's content; which fields it has depends on its type."""

    type: str = "text"
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: "StrOrList[BlockField] | None" = None
    is_error: bool | None = None
    source: dict[str, Any] | None = None


class TurnField(Wire):
    """One turn."""

    role: str = Field(json_schema_extra={"enum": ["user", "assistant", "system"]})
    content: StrOrList[BlockField] | None = None


class ToolField(Wire):
    """A tool; those that Anthropic itself would run have a type of their own and are ignored."""

    name: str = Field(min_length=1)
    type: str | None = None
    description: str | None = None
    input_schema: Schema | None = None
    strict: bool | None = None


class ChoiceField(Wire):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class FormatField(Wire):
    """The format of the answer."""

    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputField(Wire):
    """`output_config`; an effort that is not known is ignored, as agents invent new ones."""

    effort: Any = None
    format: FormatField | None = None

    def known_effort(self) -> EffortField | None:
        """The effort that is meant."""
        word = self.effort.strip().lower() if isinstance(self.effort, str) else None
        return next((effort for effort in EFFORTS if effort == word), None)


class Body(Asked):
    """`POST /v1/messages`."""

    messages: list[TurnField] = Field(min_length=1)
    system: StrOrList[BlockField] | None = None
    stop_sequences: list[str] | None = None
    tools: list[ToolField] | None = None
    tool_choice: ChoiceField | None = None
    output_config: OutputField | None = None


def parse(body: bytes) -> Order:
    """The order in a request's body, `count_tokens` included.

    Raises:
        BadRequest, ValidationFailed: what the body asks cannot be done.
    """
    asked = Body.read(body)
    output = asked.output_config or OutputField()
    tools = unique(
        function_tool(tool.name, tool.description, tool.input_schema, tool.strict)
        for tool in asked.tools or ()
        if tool.type in (None, "custom")
    )
    choice = asked.tool_choice or ChoiceField(type="auto")
    return Order(
        model=asked.model,
        messages=(*_system(asked.system), *_turns(asked.messages)),
        tools=tools,
        tool_choice=choose(_MODES[choice.type], choice.name if choice.type == "tool" else None, tools),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        sampling=asked.wishes(),
        max_tokens=asked.max_tokens,
        stop=stop_words(asked.stop_sequences or (), "stop_sequences"),
        stream=bool(asked.stream),
        thinking=asked.thoughts(output.known_effort()),
        template_kwargs=asked.template_kwargs(),
        response_format=ResponseFormat(output.format.schema_, strict=True) if output.format else None,
    )


def _system(content: str | list[BlockField] | None) -> Iterable[Message]:
    """A system turn without the line that changes from request to request and would spoil every cached prefix."""
    blocks = [content] if isinstance(content, str) else [block.text for block in content or ()]
    texts = [_BILLING.sub("", text) for text in blocks if text]
    if kept := [text for text in texts if text.strip()]:
        yield Message("system", "\n".join(kept))


def _turns(turns: list[TurnField]) -> Iterable[Message]:
    names: dict[str, str] = {}
    for at, turn in enumerate(turns):
        where = f"messages.{at}"
        if turn.role == "system":
            yield from _system(turn.content)
        elif turn.role == "user":
            yield from _user(turn.content, where, names)
        elif turn.role == "assistant":
            yield _assistant(turn.content, names)
        else:
            raise BadRequest(f"{where}: unknown role {turn.role!r}; give one of user, assistant, system", where)


def _user(content: str | list[BlockField] | None, where: str, names: dict[str, str]) -> Iterable[Message]:
    """A user turn, and each tool result in it as a turn of its own, in the order they have."""
    if not isinstance(content, list):
        yield Message("user", content or "")
        return
    texts: list[str] = []
    for at, block in enumerate(content):
        if block.type == "tool_result":
            if texts:
                yield Message("user", "\n".join(texts))
                texts = []
            answered = block.tool_use_id or ""
            yield Message("tool", _result(block), answers=answered, name=names.get(answered))
        elif (text := _text(block, f"{where}.content.{at}")) is not None:
            texts.append(text)
    if texts:
        yield Message("user", "\n".join(texts))


def _assistant(content: str | list[BlockField] | None, names: dict[str, str]) -> Message:
    if not isinstance(content, list):
        return Message("assistant", content or "")
    calls = []
    for at, block in enumerate(content):
        if block.type == "tool_use" and block.name:
            calls.append(Call(block.id or f"toolu_{at}", block.name, arguments_text(block.input)))
    names.update((call.id, call.name) for call in calls)
    return Message(
        "assistant",
        "\n".join(block.text for block in content if block.type == "text" and block.text),
        reasoning="\n".join(block.thinking for block in content if block.type == "thinking" and block.thinking),
        calls=tuple(calls),
    )


def _text(block: BlockField, where: str) -> str | None:
    """What a block of a user's says; None for one of an unknown type."""
    if block.type == "text":
        return block.text or ""
    if block.type == "image":
        raise no_pictures("image", where)
    if block.type == "document":
        source = block.source or {}
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return str(source["data"])
        raise no_pictures("document", where)
    return None


def _result(block: BlockField) -> str:
    """The text of a tool's result; an image in it is said to be one, since an agent cannot take it back."""
    if isinstance(block.content, list):
        texts = (UNSEEN if part.type == "image" else part.text for part in block.content)
        text = "\n".join(text for text in texts if text is not None)
    else:
        text = block.content or ""
    return f"Error: {text}" if block.is_error else text


class Reply:
    """See `dspark.server.dialects.reply.Reply`. Blocks are numbered in order, one of them open at a time."""

    def __init__(self, order: Order, context: Context) -> None:
        self._context = context
        self._blocks: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        self._open = False
        self._ending: Ending | None = None

    def begin(self) -> list[Frame]:
        """`message_start`; how much of the prompt was cached is told at the end."""
        message = {**self._message(), "usage": _counted(self._context.prompt_tokens, 0, 0)}
        return [_event("message_start", message=message)]

    def feed(self, part: Part, choice: int = 0) -> list[Frame]:
        """The events of a part, those that end the block before it and begin its own included."""
        match part:
            case Scores():
                return []
            case Reasoning(text):
                frames = self._enter({"type": "thinking", "thinking": "", "signature": ""})
                self._pieces.append(text)
                return [*frames, self._delta(type="thinking_delta", thinking=text)]
            case Content(text):
                frames = self._enter({"type": "text", "text": ""})
                self._pieces.append(text)
                return [*frames, self._delta(type="text_delta", text=text)]
            case ToolCall(id=id_, name=name, arguments=arguments):
                used = {"type": "tool_use", "id": f"toolu_{id_.removeprefix('call_')}", "name": name, "input": {}}
                frames = self._enter(used)
                self._blocks[-1]["input"] = json.loads(arguments)
                return [*frames, self._delta(type="input_json_delta", partial_json=arguments), *self._leave()]

    def finish(self, ending: Ending, choice: int = 0) -> list[Frame]:
        """The end of the last block, `message_delta` with reason and usage, `message_stop`."""
        self._ending = ending
        delta = {"stop_reason": _STOP_REASONS[ending.reason], "stop_sequence": ending.stop_sequence}
        told = _event("message_delta", delta=delta, usage=_usage(ending))
        return [*self._leave(), told, _event("message_stop", x_mlx_dspark=dict(ending.figures))]

    def fail(self, error: Exception) -> list[Frame]:
        """The error as an event, and the end of the stream."""
        failed = _event("error", error=error_object(error), request_id=self._context.request_id)
        return [*self._leave(), failed, _event("message_stop")]

    def keepalive(self) -> Frame:
        """`ping`."""
        return _event("ping")

    def whole(self) -> dict[str, Any]:
        """The message in one piece."""
        assert self._ending is not None, "finish comes before whole"
        return {
            **self._message(),
            "content": self._blocks,
            "stop_reason": _STOP_REASONS[self._ending.reason],
            "stop_sequence": self._ending.stop_sequence,
            "usage": _usage(self._ending),
            "x_mlx_dspark": dict(self._ending.figures),
        }

    def _message(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._context.id}",
            "type": "message",
            "role": "assistant",
            "model": self._context.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _enter(self, block: dict[str, Any]) -> list[Frame]:
        """Open a block like this one, unless the open one is."""
        if self._open and self._blocks[-1]["type"] == block["type"]:
            return []
        frames = self._leave()
        self._blocks.append(dict(block))
        self._open = True
        return [*frames, _event("content_block_start", index=len(self._blocks) - 1, content_block=block)]

    def _leave(self) -> list[Frame]:
        """Close the open block, if one is open."""
        if not self._open:
            return []
        self._open = False
        frames = []
        block = self._blocks[-1]
        if block["type"] != "tool_use":
            block[block["type"]] = "".join(self._pieces)
            self._pieces = []
        if block["type"] == "thinking":
            block["signature"] = _signature(block["thinking"])
            frames.append(self._delta(type="signature_delta", signature=block["signature"]))
        return [*frames, _event("content_block_stop", index=len(self._blocks) - 1)]

    def _delta(self, **delta: str) -> Frame:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)


def _event(kind: str, **fields: Any) -> Frame:
    return kind, {"type": kind, **fields}


def _signature(thinking: str) -> str:
    """Clients keep it and send it back; nothing here checks it."""
    return base64.b64encode(hashlib.sha256(thinking.encode()).digest()).decode()


def _usage(ending: Ending) -> dict[str, int]:
    used = ending.usage
    return _counted(used.prompt_tokens - used.cached_tokens, used.cached_tokens, used.completion_tokens)


def _counted(new: int, cached: int, output: int) -> dict[str, int]:
    return {
        "input_tokens": new,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }
