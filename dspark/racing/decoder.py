"""The part of the engine that a race drives."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from dspark.decoding.events import Event
from dspark.decoding.request import Request, Sampling, Speculation, SpeculationOptions
from dspark.decoding.verdict import TopTwo


class Decoder(Protocol):
    """A loaded pair that answers prompts; `dspark.engine.Engine` is the one there is."""

    def resolve(self, options: SpeculationOptions) -> Speculation:
        """Settle what `options` leave open. Raises UsageError where the pair cannot do it."""

    def generate(self, request: Request) -> Iterator[Event]:
        """Answer one prompt; errors of DSparkError are raised out of the iterator, closing it cancels."""

    def encode_chat(self, prompt: str) -> list[int]:
        """Token ids of one user turn."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids."""

    def top_two(self, context: Sequence[int], sampling: Sampling, place: int) -> TopTwo:
        """The target's two best next tokens after `context`, at `place` of an answer that is chosen by `sampling`."""
