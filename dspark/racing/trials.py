"""A trial: one answer of one arm to one prompt, and the order in which trials are run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dspark.decoding.events import Finished, FinishReason, Statistics
from dspark.decoding.verdict import Answer

T = TypeVar("T")


@dataclass(frozen=True)
class Slot:
    """A place in the schedule: which arm answers which prompt for the how-manieth time (all counted from 0)."""

    prompt: int
    number: int
    arm: int


@dataclass(frozen=True)
class Trial:
    """What one answer was, and how long it took.

    `section` is that of its prompt. `total_s` is end-to-end as the caller sees it, from the request to the last event;
    the split into prompt processing and decoding is the engine's.
    """

    prompt: int
    section: str
    arm: str
    number: int
    tokens: tuple[int, ...]
    text: str
    reason: FinishReason
    statistics: Statistics
    total_s: float

    @classmethod
    def of(cls, slot: Slot, section: str, arm: str, finished: Finished, total_s: float) -> "Trial":
        return cls(
            slot.prompt, section, arm, slot.number,
            finished.tokens, finished.text, finished.reason, finished.statistics, total_s,
        )  # fmt: skip

    @property
    def prefill_s(self) -> float:
        """From the request to the first token of the answer."""
        return self.statistics.prefill_seconds

    @property
    def decode_s(self) -> float:
        """From the first token of the answer to its end."""
        return self.statistics.decode_seconds

    @property
    def answer(self) -> Answer:
        return Answer(self.tokens, ended=self.reason == "stop")

    @property
    def tokens_per_second(self) -> float | None:
        """End-to-end rate. An answer without a token counts as one: its end-of-sequence token was decoded too."""
        return max(len(self.tokens), 1) / self.total_s if self.total_s > 0 else None


def schedule(prompts: int, trials: int, arms: int) -> Iterator[Slot]:
    """Every arm on every prompt in every trial, interleaved so that no arm owns a part of the session.

    A trial goes once over all prompts, so that the repeats of a prompt lie far apart and a slow drift (heat, another
    program) reaches all arms alike. The arms take turns in going first, from prompt to prompt and from trial to trial.
    """
    for number in range(trials):
        for prompt in range(prompts):
            for arm in rotated(range(arms), number + prompt):
                yield Slot(prompt, number, arm)


def rotated(items: Sequence[T], by: int) -> list[T]:
    """`items` in order, beginning with item `by` (modulo their number)."""
    start = by % len(items) if items else 0
    return [*items[start:], *items[:start]]
