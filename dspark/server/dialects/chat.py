"""OpenAI chat completions."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from dspark.errors import BadRequest
from dspark.server.dialects import openai
from dspark.server.dialects.asked import (
    Asked,
    Count,
    Mode,
    arguments_text,
    choose,
    no_pictures,
    smallest,
    unique,
)
from dspark.server.dialects.choices import Choice, ChoicesReply
from dspark.server.dialects.reply import Frame
from dspark.server.dialects.wire import StrOrList, Wire, invalid, shape
from dspark.server.order import Call, Message, Order, Role, Tool, ToolChoice
from dspark.server.parts import Content, Part, Reasoning, Scores, ToolCall

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class PartField(Wire):
    """One part of a message's content."""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None


class CalledFunction(Wire):
    """What was called, with its arguments as text or as an object."""

    name: str = Field(min_length=1)
    arguments: Any = None


class CallField(Wire):
    """A tool call of an earlier turn."""

    id: str | None = None
    function: CalledFunction


class MessageField(Wire):
    """One turn."""

    role: str = Field(json_schema_extra={"enum": [*_ROLES]})
    content: StrOrList[PartField] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallField] | None = None
    tool_call_id: str | None = None

    def message(self, where: str) -> Message:
        """As an order holds it. Raises BadRequest for a role or a part that cannot be."""
        role = _ROLES.get(self.role)
        if role is None:
            raise BadRequest(f"{where}: unknown role {self.role!r}; give one of {', '.join(_ROLES)}", where)
        calls = tuple(
            Call(call.id or f"call_{at}", call.function.name, arguments_text(call.function.arguments))
            for at, call in enumerate(self.tool_calls or ())
        )
        return Message(
            role,
            self._text(where),
            reasoning=self.reasoning_content or self.reasoning or "",
            calls=calls if role == "assistant" else (),
            answers=self.tool_call_id if role == "tool" else None,
            name=self.name,
        )

    def _text(self, where: str) -> str:
        if self.content is None:
            return self.refusal or ""
        if isinstance(self.content, str):
            return self.content
        texts = []
        for at, part in enumerate(self.content):
            text = part.refusal if part.type == "refusal" else part.text
            if text is None and part.type not in ("text", "refusal"):
                raise no_pictures(part.type, f"{where}.content.{at}")
            texts.append(text or "")
        return "\n".join(texts)


class ToolField(Wire):
    """A tool that the model may call."""

    type: Literal["function"] = "function"
    function: openai.FunctionField


class NamedFunction(Wire):
    """A tool by its name."""

    name: str


class AllowedTool(Wire):
    """A tool as `allowed_tools` names it."""

    function: NamedFunction


class AllowedTools(Wire):
    """Those of the tools that may be called in this answer."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[AllowedTool] = Field(default_factory=list)


class ChoiceField(Wire):
    """`tool_choice` as an object."""

    type: Literal["function", "allowed_tools"] = "function"
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


ToolChoiceField = Annotated[
    Annotated[Mode, Tag("<str>")] | Annotated[ChoiceField, Tag("<dict>")],
    Discriminator(
        shape, custom_error_type="tool_choice", custom_error_message="Input should be a valid string or object"
    ),
]


class Body(Asked):
    """`POST /v1/chat/completions`."""

    messages: list[MessageField] = Field(min_length=1)
    max_completion_tokens: Count | None = Field(None, description="the smaller of this and max_tokens holds")
    stop: openai.StopField | None = None
    n: int | None = Field(None, gt=0, le=128)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[ToolField] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    response_format: openai.FormatField | None = None
    stream_options: openai.StreamOptions | None = None


def parse(body: bytes) -> Order:
    """The order in a request's body.

    Raises:
        BadRequest, ValidationFailed: what the body asks cannot be done.
    """
    asked = Body.read(body)
    if asked.top_logprobs and not asked.logprobs:
        raise BadRequest("top_logprobs needs logprobs: true", "top_logprobs")
    tools, choice = _chosen(asked.tool_choice, unique(tool.function.tool() for tool in asked.tools or ()))
    return Order(
        model=asked.model,
        messages=tuple(message.message(f"messages.{at}") for at, message in enumerate(asked.messages)),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        sampling=asked.wishes((asked.top_logprobs or 0) if asked.logprobs else None),
        max_tokens=smallest(asked.max_tokens, asked.max_completion_tokens),
        stop=openai.stop_strings(asked.stop),
        stream=bool(asked.stream),
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        n=asked.n or 1,
        thinking=asked.thoughts(),
        template_kwargs=asked.template_kwargs(),
        response_format=asked.response_format.wanted() if asked.response_format else None,
    )


def _chosen(choice: Mode | ChoiceField | None, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that are left, and the choice among them."""
    if isinstance(choice, ChoiceField):
        if choice.type == "allowed_tools":
            allowed = choice.allowed_tools or AllowedTools()
            names = {tool.function.name for tool in allowed.tools}
            kept = tuple(tool for tool in tools if tool.name in names)
            return kept, choose(allowed.mode, None, kept)
        if choice.function is None:
            raise invalid([(("tool_choice", "function"), "Field required")])
        return tools, choose("required", choice.function.name, tools)
    return tools, choose(choice or "auto", None, tools)


class Reply(ChoicesReply):
    """See `dspark.server.dialects.reply.Reply`."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    empty: ClassVar = {"delta": {}}

    def begin(self) -> list[Frame]:
        """A first chunk a choice, with the role."""
        delta = {"delta": {"role": "assistant", "content": ""}}
        return [self.chunk(index, delta) for index in range(len(self.choices))]

    def feed(self, part: Part, choice: int = 0) -> list[Frame]:
        """A chunk a part; log-probabilities go with the next."""
        grown = self.choices[choice]
        match part:
            case Scores(tokens):
                grown.score(tokens)
                return []
            case Reasoning(text):
                grown.reasoning.append(text)
                delta: dict[str, Any] = {"reasoning_content": text}
            case Content(text):
                grown.text.append(text)
                delta = {"content": text}
            case ToolCall():
                grown.calls.append(part)
                delta = {"tool_calls": [{"index": len(grown.calls) - 1, **_call(part)}]}
        return [self.chunk(choice, {"delta": delta})]

    def message(self, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text or (None if choice.calls else ""),
            "refusal": None,
        }
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if choice.calls:
            message["tool_calls"] = [_call(call) for call in choice.calls]
        return {"message": message}

    def logprobs(self, choice: Choice, start: int) -> dict[str, Any]:
        return {"content": [openai.token_logprob(score) for score in choice.scores[start:]], "refusal": None}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
