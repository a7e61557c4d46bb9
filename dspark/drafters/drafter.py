"""What the decoding loop knows of a drafter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx


@dataclass(frozen=True)
class Draft:
    """Proposals for the tokens after the anchor, lazy: `tokens` [n] target ids, `confidence` [n] in 0..1 or None."""

    tokens: mx.array
    confidence: mx.array | None


class Pick(Protocol):
    """Chooses a proposal. Any rule is lossless; one that mirrors the target's is accepted more often."""

    def __call__(self, logits: mx.array, step: int, ids: mx.array | None) -> mx.array:
        """Indices [1] into `logits` [1, V_d] of step `step`; `ids` [V_d] maps them to target ids (None: the same)."""


def greedy(logits: mx.array, step: int, ids: mx.array | None) -> mx.array:
    """The most likely proposal."""
    return mx.argmax(logits, axis=-1)


class DrafterContext(Protocol):
    """What a drafter remembers of one sequence: one row per token that the target's cache holds, never more."""

    @property
    def length(self) -> int:
        """Rows held."""

    def append(self, rows: mx.array | None, tokens: Sequence[int]) -> None:
        """Add n committed `tokens` and their tapped rows [1, n, taps * d] (None for a drafter without taps)."""

    def truncate(self, length: int) -> None:
        """Forget rows after the first `length`: when an answer ends, and when another prompt shares only those."""

    @property
    def arrays(self) -> list[mx.array]:
        """Arrays to evaluate with the round, so that no graph outlives it."""


@runtime_checkable
class Forkable(Protocol):
    """A context that several conversations with the same beginning can share; one without this moves with one alone."""

    def fork(self, length: int) -> DrafterContext:
        """A context of its own with the first `length` rows of this one, which stays as it is."""


@runtime_checkable
class Storable(Protocol):
    """A context that can be written to disk; one without this is left out there."""

    def state(self) -> dict[str, Any]:
        """Arrays and numbers, in lists and dicts."""

    def resume(self, state: dict[str, Any]) -> None:
        """Hold what `state` of another context of the same drafter gave."""


class Drafter(Protocol):
    """Proposes tokens.

    `block` is the most it can propose a round, `taps` the hidden rows it reads (canonical ids, empty for none), and
    `has_confidence` says whether its drafts come with confidences.
    """

    block: int
    taps: tuple[int, ...]
    has_confidence: bool

    def new_context(self) -> DrafterContext:
        """An empty context for one sequence."""

    def draft(self, context: DrafterContext, anchor: mx.array, cap: int, pick: Pick = greedy) -> Draft:
        """Propose at most `cap` tokens to follow `anchor` [1], the newest token, not yet in the context."""
