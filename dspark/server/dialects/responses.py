"""OpenAI responses, without state: every request carries its whole conversation."""

import json
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Discriminator, Field, Tag

from dspark.errors import BadRequest
from dspark.server.dialects import openai
from dspark.server.dialects.asked import Asked, Count, EffortField, Mode, choose, smallest
from dspark.server.dialects.items import ItemField, ToolField, known_name, messages_of, tools_of
from dspark.server.dialects.reply import Context, Frame
from dspark.server.dialects.wire import Schema, StrOrList, Wire, invalid, shape
from dspark.server.envelope import error_object
from dspark.server.order import Message, Order, ResponseFormat, Tool, ToolChoice
from dspark.server.parts import Content, Ending, Part, Reasoning, Scores, TokenScore, ToolCall

LOGPROBS = "message.output_text.logprobs"
_STATEFUL = ("previous_response_id", "conversation", "prompt")


class NamedTool(Wire):
    """A tool by its name."""

    type: str = "function"
    name: str | None = None
    namespace: str | None = None


class ChoiceField(NamedTool):
    """`tool_choice` as an object."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedTool] | None = None


ToolChoiceField = Annotated[
    Annotated[Mode, Tag("<str>")] | Annotated[ChoiceField, Tag("<dict>")],
    Discriminator(
        shape, custom_error_type="tool_choice", custom_error_message="Input should be a valid string or object"
    ),
]


class ReasoningField(Wire):
    """`reasoning`."""

    effort: EffortField | None = None


class FormatField(Wire):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class TextField(Wire):
    """`text`."""

    format: FormatField | None = None

    def wanted(self) -> ResponseFormat | None:
        """None for text."""
        if self.format is None or self.format.type == "text":
            return None
        if self.format.type == "json_object":
            return ResponseFormat()
        if self.format.schema_ is None:
            raise invalid([(("text", "format", "schema"), "Field required")])
        return ResponseFormat(self.format.schema_, self.format.name, bool(self.format.strict))


class Body(Asked):
    """`POST /v1/responses`."""

    input: StrOrList[ItemField]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    stop: openai.StopField | None = None
    tools: list[ToolField] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningField | None = None
    text: TextField | None = None
    response_format: openai.FormatField | None = None
    include: list[str] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    previous_response_id: Any = Field(None, description="refused: nothing is stored")
    conversation: Any = Field(None, description="refused: nothing is stored")
    prompt: Any = Field(None, description="refused: nothing is stored")


def parse(body: bytes) -> Order:
    """The order in a request's body.

    Raises:
        BadRequest, ValidationFailed: what the body asks cannot be done.
    """
    asked = Body.read(body)
    for name in _STATEFUL:
        if getattr(asked, name) is not None:
            raise BadRequest(f"{name} is not supported: nothing is stored here; send the whole conversation", name)
    items = [ItemField(role="user", content=asked.input)] if isinstance(asked.input, str) else asked.input
    declared = tools_of(asked.tools or (), items)
    tools, choice = _chosen(asked.tool_choice, declared)
    system = (Message("system", asked.instructions),) if asked.instructions else ()
    scored = LOGPROBS in (asked.include or ())
    formats = (asked.text and asked.text.wanted(), asked.response_format and asked.response_format.wanted())
    return Order(
        model=asked.model,
        messages=(*system, *messages_of(items, declared)),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        sampling=asked.wishes((asked.top_logprobs or 0) if scored else None),
        max_tokens=smallest(asked.max_tokens, asked.max_output_tokens),
        stop=openai.stop_strings(asked.stop),
        stream=bool(asked.stream),
        thinking=asked.thoughts(asked.reasoning.effort if asked.reasoning else None),
        template_kwargs=asked.template_kwargs(),
        response_format=next((wanted for wanted in formats if wanted), None),
    )


def _chosen(choice: Mode | ChoiceField | None, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that are left, and the choice among them."""
    if not isinstance(choice, ChoiceField):
        return tools, choose(choice or "auto", None, tools)
    if choice.type == "allowed_tools":
        names = {_find(named, tools) for named in choice.tools or ()}
        kept = tuple(tool for tool in tools if tool.name in names)
        return kept, choose(choice.mode, None, kept)
    if choice.type not in ("function", "custom"):
        raise BadRequest(f"tool_choice names a tool of type {choice.type}, which cannot be called here", "tool_choice")
    return tools, choose("required", _find(choice, tools), tools)


def _find(named: NamedTool, tools: tuple[Tool, ...]) -> str:
    return known_name(named.name or "", named.namespace, tools)


class Reply:
    """See `dspark.server.dialects.reply.Reply`. The items of the stream are those of the response, object by object."""

    def __init__(self, order: Order, context: Context) -> None:
        self._order = order
        self._context = context
        self._items: list[dict[str, Any]] = []
        self._open = False
        self._pieces: list[str] = []
        self._scores: list[TokenScore] = []
        self._unsent: list[TokenScore] = []
        self._sequence = -1
        self._ending: Ending | None = None
        self._error: dict[str, Any] | None = None

    def begin(self) -> list[Frame]:
        """`response.created` and `response.in_progress`."""
        return [self._event(f"response.{kind}", response=self._response("in_progress")) for kind in _BEGUN]

    def feed(self, part: Part, choice: int = 0) -> list[Frame]:
        """The events of a part, those that end the item before it and begin its own included."""
        match part:
            case Scores(tokens):
                self._unsent += tokens
                return []
            case Reasoning(text):
                self._unsent = []
                frames = self._enter({"type": "reasoning", "summary": [], "content": []})
                self._pieces.append(text)
                return [*frames, self._on_part("response.reasoning_text.delta", delta=text)]
            case Content(text):
                frames = self._enter({"type": "message", "role": "assistant", "content": []})
                self._pieces.append(text)
                fresh, self._unsent = self._unsent, []
                self._scores += fresh
                logprobs = [openai.token_logprob(score) for score in fresh]
                return [*frames, self._on_part("response.output_text.delta", delta=text, logprobs=logprobs)]
            case ToolCall():
                self._unsent = []
                return [*self._leave(), *self._call(part)]

    def finish(self, ending: Ending, choice: int = 0) -> list[Frame]:
        """The end of the last item, and `response.completed` or `response.incomplete`."""
        self._ending = ending
        frames = self._leave(self._status)
        return [*frames, self._event(f"response.{self._status}", response=self._response(self._status))]

    def fail(self, error: Exception) -> list[Frame]:
        """`response.failed`, with the error in its response."""
        frames = self._leave("incomplete")
        told = error_object(error)
        self._error = {**told, "code": told["code"] or "server_error"}
        return [*frames, self._event("response.failed", response=self._response("failed"))]

    def keepalive(self) -> Frame:
        """Once more `response.in_progress`."""
        return self._event("response.in_progress", response=self._response("in_progress"))

    def whole(self) -> dict[str, Any]:
        """The response in one piece."""
        return self._response(self._status)

    @property
    def _status(self) -> str:
        cut = self._ending is not None and self._ending.reason in ("length", "cancelled")
        return "incomplete" if cut else "completed"

    def _enter(self, item: dict[str, Any]) -> list[Frame]:
        """Begin an item with one part of text, unless one like it is open."""
        if self._open and self._items[-1]["type"] == item["type"]:
            return []
        frames = [*self._leave(), self._added(item)]
        self._open = True
        return [*frames, self._on_part("response.content_part.added", part=_part(item["type"], "", []))]

    def _leave(self, status: str = "completed") -> list[Frame]:
        """End the open item, if one is open."""
        if not self._open:
            return []
        self._open = False
        item = self._items[-1]
        logprobs = [openai.token_logprob(score) for score in self._scores]
        part = _part(item["type"], "".join(self._pieces), logprobs)
        self._pieces, self._scores = [], []
        item |= {"status": status, "content": [part]}
        if item["type"] == "reasoning":
            done = self._on_part("response.reasoning_text.done", text=part["text"])
        else:
            done = self._on_part("response.output_text.done", text=part["text"], logprobs=logprobs)
        return [done, self._on_part("response.content_part.done", part=part), self._done()]

    def _call(self, call: ToolCall) -> list[Frame]:
        """All events of a call."""
        tool = self._order.tool(call.name) or Tool(call.name)
        kind = _CUSTOM if tool.custom else _FUNCTION
        text = _free_text(call.arguments) if tool.custom else call.arguments
        item: dict[str, Any] = {"type": kind.item, "call_id": call.id, "name": tool.wire_name or tool.name}
        if tool.namespace is not None:
            item["namespace"] = tool.namespace
        added = self._added({**item, kind.field: ""})
        self._items[-1] |= {"status": "completed", kind.field: text}
        return [
            added,
            self._on_item(f"{kind.event}.delta", delta=text),
            self._on_item(
                f"{kind.event}.done", **{kind.field: text}, **({} if tool.custom else {"name": item["name"]})
            ),
            self._done(),
        ]

    def _added(self, item: dict[str, Any]) -> Frame:
        index = len(self._items)
        made = {"id": f"{_PREFIXES[item['type']]}_{self._context.id}_{index}", **item, "status": "in_progress"}
        self._items.append(made)
        return self._event("response.output_item.added", output_index=index, item=dict(made))

    def _done(self) -> Frame:
        return self._event("response.output_item.done", output_index=len(self._items) - 1, item=self._items[-1])

    def _on_item(self, kind: str, **fields: Any) -> Frame:
        return self._event(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **fields)

    def _on_part(self, kind: str, **fields: Any) -> Frame:
        return self._on_item(kind, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Frame:
        self._sequence += 1
        return kind, {"type": kind, "sequence_number": self._sequence, **fields}

    def _response(self, status: str) -> dict[str, Any]:
        order, context, ending = self._order, self._context, self._ending
        response = {
            "id": f"resp_{context.id}",
            "object": "response",
            "created_at": context.created,
            "status": status,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "max_output_tokens": order.max_tokens,
            "metadata": {},
            "model": context.model,
            "output": list(self._items) if status != "in_progress" else [],
            "parallel_tool_calls": order.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": order.thinking.effort, "summary": None},
            "store": False,
            "temperature": order.sampling.temperature,
            "text": {"format": _format(order.response_format)},
            "tool_choice": _choice(order),
            "tools": [_tool(tool) for tool in order.tools],
            "top_p": order.sampling.top_p,
            "truncation": "disabled",
            "usage": _usage(ending) if ending else None,
        }
        if ending is not None:
            response["x_mlx_dspark"] = dict(ending.figures)
        return response


class _CallKind(NamedTuple):
    item: str
    field: str
    event: str


_BEGUN = ("created", "in_progress")
_FUNCTION = _CallKind("function_call", "arguments", "response.function_call_arguments")
_CUSTOM = _CallKind("custom_tool_call", "input", "response.custom_tool_call_input")
_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}


def _part(item: str, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    if item == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _free_text(arguments: str) -> str:
    """The one text that a custom tool takes."""
    text = json.loads(arguments).get("input")
    return text if isinstance(text, str) else arguments


def _format(wanted: ResponseFormat | None) -> dict[str, Any]:
    if wanted is None:
        return {"type": "text"}
    if wanted.schema is None:
        return {"type": "json_object"}
    named = {"name": wanted.name or "answer", "schema": dict(wanted.schema), "strict": wanted.strict}
    return {"type": "json_schema", **named}


def _choice(order: Order) -> str | dict[str, Any]:
    chosen = order.tool(order.tool_choice.name) if order.tool_choice.name else None
    if chosen is None:
        return order.tool_choice.mode
    return {"type": "custom" if chosen.custom else "function", "name": chosen.wire_name or chosen.name}


def _tool(tool: Tool) -> dict[str, Any]:
    if tool.custom:
        return {"type": "custom", "name": tool.name, "description": tool.description}
    described = {"description": tool.description, "parameters": dict(tool.parameters), "strict": tool.strict}
    return {"type": "function", "name": tool.name, **described}


def _usage(ending: Ending) -> dict[str, Any]:
    used = ending.usage
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.prompt_tokens + used.completion_tokens,
        **openai.timings([used]),
    }
