"""What an answer is made of, before a dialect puts it into words, and how it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Reason = Literal["stop", "length", "tool_calls", "stop_sequence", "cancelled"]


@dataclass(frozen=True)
class Reasoning:
    """A piece of the model's thinking."""

    text: str


@dataclass(frozen=True)
class Content:
    """A piece of the answer proper."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """A whole call of the tool that the model knows as `name`; `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class TokenScore:
    """The log-probability of an emitted token and of the best in its place; `data` are its bytes, where known."""

    text: str
    data: bytes | None
    logprob: float
    top: tuple["TokenScore", ...] = ()


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of the next tokens of the answer, whatever part of it they belong to."""

    tokens: tuple[TokenScore, ...]


Part = Reasoning | Content | ToolCall | Scores


@dataclass(frozen=True)
class Usage:
    """What one answer took. Rates in tokens a second, prompt rates over uncached tokens; None is unknown."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    ttft_seconds: float | None = None
    total_seconds: float | None = None
    prompt_tokens_per_second: float | None = None
    generation_tokens_per_second: float | None = None


@dataclass(frozen=True)
class Ending:
    """How one answer ended.

    `stop_sequence` is the stop string that ended it, where one did. `figures` is its `x_mlx_dspark` block.
    """

    reason: Reason
    usage: Usage
    figures: Mapping[str, Any] = field(default_factory=dict)
    stop_sequence: str | None = None
