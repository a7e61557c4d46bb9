"""Answers in OpenAI's older form: a list of choices, each with its own end, and one tail behind the last."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dspark.server.dialects import openai
from dspark.server.dialects.reply import Context, Frame
from dspark.server.envelope import error_object
from dspark.server.order import Order
from dspark.server.parts import Ending, TokenScore, ToolCall

Chunk = tuple[None, dict[str, Any]]


@dataclass
class Choice:
    """One answer as it grows. Of its `scores`, `sent` went out with a chunk; `offsets` are where their texts begin."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    offsets: list[int] = field(default_factory=lambda: [0])
    sent: int = 0
    ending: Ending | None = None

    def score(self, tokens: Sequence[TokenScore]) -> None:
        """Add the log-probabilities of the next tokens."""
        self.scores += tokens
        for token in tokens:
            self.offsets.append(self.offsets[-1] + len(token.text))


class ChoicesReply(ABC):
    """What chat completions and completions do alike; see `dspark.server.dialects.reply.Reply`."""

    prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    empty: ClassVar[dict[str, Any]]

    def __init__(self, order: Order, context: Context) -> None:
        self.order = order
        self._context = context
        self.choices = [Choice() for _ in range(order.choices)]

    @abstractmethod
    def message(self, choice: Choice) -> dict[str, Any]:
        """The whole answer of a choice."""

    @abstractmethod
    def logprobs(self, choice: Choice, start: int) -> dict[str, Any]:
        """The log-probabilities of a choice from the token at `start` on."""

    def finish(self, ending: Ending, choice: int = 0) -> list[Frame]:
        """The last chunk of a choice, and of the stream if it is the last choice."""
        self.choices[choice].ending = ending
        _, last = self.chunk(choice, self.empty, openai.finish_reason(ending))
        endings = self._endings
        if len(endings) < len(self.choices):
            return [(None, last)]
        tail = {"x_mlx_dspark": openai.figures(endings)}
        if not self.order.include_usage:
            return [(None, last | tail), (None, "[DONE]")]
        counted = {"choices": [], "usage": openai.usage(endings, self.order.n), **tail}
        return [(None, last), (None, self._head(self.chunk_object) | counted), (None, "[DONE]")]

    def fail(self, error: Exception) -> list[Frame]:
        """The error as an event, and the end of the stream."""
        return [(None, {"error": error_object(error)}), (None, "[DONE]")]

    def keepalive(self) -> Frame:
        """A chunk that adds nothing to the choice that is being written."""
        running = next((at for at, choice in enumerate(self.choices) if choice.ending is None), 0)
        return self._frame(running, self.empty, None, None)

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            {
                "index": index,
                **self.message(choice),
                "logprobs": self.logprobs(choice, 0) if self._scored else None,
                "finish_reason": openai.finish_reason(choice.ending) if choice.ending else None,
            }
            for index, choice in enumerate(self.choices)
        ]
        counted = {"usage": openai.usage(self._endings, self.order.n), "x_mlx_dspark": openai.figures(self._endings)}
        return {**self._head(self.whole_object), "choices": choices, **counted}

    def chunk(self, index: int, delta: dict[str, Any], reason: str | None = None) -> Chunk:
        """A chunk of one choice, with the log-probabilities that went with none before."""
        choice = self.choices[index]
        fresh = self._scored and choice.sent < len(choice.scores)
        logprobs = self.logprobs(choice, choice.sent) if fresh else None
        choice.sent = len(choice.scores)
        return self._frame(index, delta, reason, logprobs)

    def _frame(self, index: int, delta: dict[str, Any], reason: str | None, logprobs: dict[str, Any] | None) -> Chunk:
        choice = {"index": index, **delta, "logprobs": logprobs, "finish_reason": reason}
        return None, {**self._head(self.chunk_object), "choices": [choice]}

    @property
    def _scored(self) -> bool:
        return self.order.sampling.top_logprobs is not None

    @property
    def _endings(self) -> list[Ending]:
        return [choice.ending for choice in self.choices if choice.ending is not None]

    def _head(self, kind: str) -> dict[str, Any]:
        context = self._context
        return {
            "id": f"{self.prefix}-{context.id}",
            "object": kind,
            "created": context.created,
            "model": context.model,
        }
