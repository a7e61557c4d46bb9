"""What an answer may consist of, token by token: the protocol that the decoding loop knows.

A constraint is the state of one sequence and begins at the first token of its answer. It forbids tokens to the target's
own choice, which is otherwise made as always; so an answer is the one that plain decoding gives under the same
constraint, and proposals decide only how many of its tokens are settled in one pass. Each row of a verified block is
masked by the state that the proposals before it lead to, and a draft is cut where it stops being admitted.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import mlx.core as mx

if TYPE_CHECKING:
    from dspark.targets.target import Target


class Constraint(Protocol):
    """State of one sequence. Only `advance` moves it; the other methods look ahead from where it stands."""

    def idle(self, tokens: int) -> bool:
        """Whether the next `tokens` tokens are free, whatever they are. While so, a constraint costs nothing."""

    def admitted(self, draft: Sequence[int]) -> int:
        """How many tokens of `draft` may come next, one after another. It holds no end-of-sequence token."""

    def masks(self, draft: Sequence[int]) -> mx.array:
        """Boolean [1 + n, V]: row j is true for the tokens that may follow draft[:j]. All of `draft` is admitted."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Take tokens that were chosen.

        Raises:
            ConstraintDeadEnd: a token is not admitted, since none was.
        """


# Builds the state for one answer of a target; raises ConstraintError for what cannot be enforced with it.
ConstraintFactory = Callable[["Target"], Constraint]


def forbid(logits: mx.array, allowed: mx.array) -> mx.array:
    """`logits` [w, V'] with minus infinity wherever `allowed` [w, V] is not true; columns past V are not allowed."""
    surplus = logits.shape[-1] - allowed.shape[-1]
    if surplus > 0:
        allowed = mx.pad(allowed, [(0, 0), (0, surplus)])
    return mx.where(allowed, logits, -float("inf"))
