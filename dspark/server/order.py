"""What a client asks for, whatever dialect it asked in. None always means: not said."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from dspark.decoding.request import Sampling

Role = Literal["system", "user", "assistant", "tool"]
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[Effort, ...] = ("minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True)
class Call:
    """A tool call of an earlier turn. `arguments` is a JSON object as text, or whatever the client kept of it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One turn. `answers` is the id of the call that a tool turn answers, `name` the tool's name where it is known."""

    role: Role
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    answers: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Tool:
    """A tool under the `name` that the model reads and writes.

    `wire_name` and `namespace` are what the client calls it. A `custom` tool takes one free text: `parameters` then
    describes an object with the one string `input`.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False
    custom: bool = False
    wire_name: str | None = None
    namespace: str | None = None

    def as_function(self) -> dict[str, Any]:
        """As chat templates and tool parsers know it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolChoice:
    """`required` asks for a call of any tool, or of the tool `name`."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None


@dataclass(frozen=True)
class ResponseFormat:
    """The answer is a JSON object; `schema` None admits any."""

    schema: Mapping[str, Any] | None = None
    name: str | None = None
    strict: bool = False


@dataclass(frozen=True)
class Thinking:
    """Wishes about reasoning: whether, how hard, and at most how many tokens of it."""

    enabled: bool | None = None
    effort: Effort | None = None
    budget: int | None = None

    def over(self, defaults: "Thinking") -> "Thinking":
        """These wishes, and the defaults' where nothing was said."""
        return Thinking(
            enabled=defaults.enabled if self.enabled is None else self.enabled,
            effort=self.effort or defaults.effort,
            budget=defaults.budget if self.budget is None else self.budget,
        )


NO_WISHES = Thinking()


@dataclass(frozen=True)
class SamplingWishes:
    """`dspark.decoding.request.Sampling` as far as the client, a flag or a model's own defaults say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    top_logprobs: int | None = None

    def over(self, *defaults: "SamplingWishes") -> Sampling:
        """These wishes, else the first of `defaults` that says something, else greedy decoding."""
        layers = (self, *defaults)
        said = {
            name.name: next((value for layer in layers if (value := getattr(layer, name.name)) is not None), None)
            for name in fields(self)
        }
        return Sampling(**{name: value for name, value in said.items() if value is not None})


@dataclass(frozen=True)
class Order:
    """One request for generation.

    Either `messages` (for the chat template) or `prompts` (raw text or token ids) is given. `n` answers are wanted for
    each prompt, `max_tokens` bounds each. `tools` are all that the client declared; `offered` those that may be called.
    """

    model: str | None = None
    messages: tuple[Message, ...] = ()
    prompts: tuple[str | tuple[int, ...], ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    sampling: SamplingWishes = SamplingWishes()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    n: int = 1
    echo: bool = False
    thinking: Thinking = Thinking()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    response_format: ResponseFormat | None = None

    @property
    def choices(self) -> int:
        """How many answers are wanted in all; answer i belongs to prompt i // n."""
        return self.n * (len(self.prompts) or 1)

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model may call in this answer."""
        if self.tool_choice.mode == "none":
            return ()
        if self.tool_choice.name is not None:
            return tuple(tool for tool in self.tools if tool.name == self.tool_choice.name)
        return self.tools

    def tool(self, name: str) -> Tool | None:
        """The declared tool that the model knows as `name`."""
        return next((tool for tool in self.tools if tool.name == name), None)
