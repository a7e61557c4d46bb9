"""What all dialects let a client ask, and how it becomes the fields of an order."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from dspark.errors import BadRequest
from dspark.server.dialects.wire import Wire, invalid, shape
from dspark.server.order import EFFORTS, SamplingWishes, Thinking, Tool, ToolChoice

EffortField = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Mode = Literal["none", "auto", "required"]
Count = Annotated[int, Field(gt=0)]
# Of all stop strings of a request together: what they take, in time before the first token too, grows with them.
STOP_CHARACTERS = 65536


class ThinkingField(Wire):
    """`{"type": "enabled", "budget_tokens": 1024}` and its like."""

    type: str | None = None
    budget_tokens: int | None = Field(None, ge=0)


ThinkingOrBool = Annotated[
    Annotated[bool, Tag("<bool>")] | Annotated[ThinkingField, Tag("<dict>")],
    Discriminator(
        shape,
        custom_error_type="thinking",
        custom_error_message="Input should be a valid boolean or object",
    ),
]


class Asked(Wire):
    """The fields that every dialect takes, under the names they share."""

    model: str | None = Field(None, description="answered by the one loaded model, whatever it says")
    stream: bool | None = None
    max_tokens: Count | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, lt=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, json_schema_extra={"propertyNames": {"pattern": "^[0-9]{1,9}$"}}
    )
    enable_thinking: bool | None = None
    thinking: ThinkingOrBool | None = None
    thinking_budget: int | None = Field(None, ge=0)
    reasoning_effort: EffortField | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def wishes(self, top_logprobs: int | None = None) -> SamplingWishes:
        """The sampling that is asked for."""
        return SamplingWishes(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self._biases(),
            top_logprobs=top_logprobs,
        )

    def _biases(self) -> dict[int, float] | None:
        if not self.logit_bias:
            return None
        for token in self.logit_bias:
            if not (token.isascii() and token.isdecimal() and len(token) < 10):
                raise invalid([(("logit_bias", token), "Input should be a token id")])
        return {int(token): bias for token, bias in self.logit_bias.items()}

    def thoughts(self, effort: EffortField | None = None) -> Thinking:
        """The wishes about reasoning; `effort` is what a field of the dialect's own says.

        What is said in a field goes before the same in `chat_template_kwargs`; an effort of `none` turns reasoning off
        where nothing else turns it on.
        """
        said = self.chat_template_kwargs or {}
        effort = self.reasoning_effort or effort or _effort(said)
        enabled, budget = self.enable_thinking, self.thinking_budget
        if isinstance(self.thinking, ThinkingField):
            budget = self.thinking.budget_tokens if budget is None else budget
        if enabled is None:
            enabled = _switch(self.thinking)
        for name in ("enable_thinking", "thinking"):
            if not isinstance(said.get(name), bool | None):
                raise invalid([(("chat_template_kwargs", name), "Input should be a valid boolean")])
            enabled = said.get(name) if enabled is None else enabled
        if effort == "none":
            return Thinking(False if enabled is None else enabled, None, budget)
        return Thinking(enabled, effort, budget)

    def template_kwargs(self) -> Mapping[str, Any]:
        """The rest of `chat_template_kwargs`, which goes to the template as it is."""
        taken = ("enable_thinking", "thinking", "reasoning_effort")
        return {
            name: value
            for name, value in (self.chat_template_kwargs or {}).items()
            if value is not None and name not in taken
        }


def _switch(thinking: bool | ThinkingField | None) -> bool | None:
    """What `thinking` says; `adaptive` leaves it to the model, as saying nothing does."""
    if isinstance(thinking, ThinkingField):
        return {"enabled": True, "disabled": False}.get(thinking.type or "")
    return thinking


def _effort(said: Mapping[str, Any]) -> EffortField | None:
    value = said.get("reasoning_effort")
    if value is None or value in ("none", *EFFORTS):
        return value
    names = ", ".join(f"'{name}'" for name in ("none", *EFFORTS))
    raise invalid([(("chat_template_kwargs", "reasoning_effort"), f"Input should be one of {names}")])


def smallest(*limits: int | None) -> int | None:
    """The smallest limit that was given."""
    return min((limit for limit in limits if limit is not None), default=None)


def stop_words(words: Iterable[str], field: str) -> tuple[str, ...]:
    """Each stop string once, without empty ones.

    Raises:
        ValidationFailed: they are too long to look for in every answer.
    """
    kept = tuple(dict.fromkeys(word for word in words if word))
    if sum(map(len, kept)) > STOP_CHARACTERS:
        raise invalid([((field,), f"Input should have at most {STOP_CHARACTERS} characters in all")])
    return kept


def unique(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """The tools in order, the first of each name."""
    named: dict[str, Tool] = {}
    for tool in tools:
        named.setdefault(tool.name, tool)
    return tuple(named.values())


def choose(mode: Mode, name: str | None, tools: Sequence[Tool]) -> ToolChoice:
    """The choice among `tools`; without any there is nothing to choose.

    Raises:
        BadRequest: the tool that must be called is not among them.
    """
    if name is not None and all(tool.name != name for tool in tools):
        raise BadRequest(f"tool_choice names the tool {name!r}, which is not in tools", "tool_choice")
    return ToolChoice(mode, name) if tools else ToolChoice()


def arguments_text(arguments: object) -> str:
    """The arguments of a past call, which clients keep as text or as an object."""
    if isinstance(arguments, str):
        return arguments
    return "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)


def no_pictures(kind: str, where: str) -> BadRequest:
    """The refusal of whatever is not text."""
    return BadRequest(f"{where}: {kind} cannot be read, the loaded model reads text only; send text", where)
