"""Thinking under a constraint: a limit on the reasoning tokens, and what must follow once the reasoning is over."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import mlx.core as mx

from dspark.decoding.constraint import Constraint, ConstraintFactory
from dspark.errors import ConstraintError

if TYPE_CHECKING:
    from dspark.targets.target import Target


@dataclass(frozen=True)
class Thinking:
    """Reasoning of at most `budget` tokens (None: no limit), then the model's end marker, then what `then` admits.

    `opened` says that the prompt ends inside the think block, where the templates of some models leave it; otherwise
    reasoning begins with the model's start marker, or never. Where `then` is given, only the start of an answer can be
    reasoning, and the answer cannot end within it. The markers are not counted. A model without them does not reason.
    """

    budget: int | None = None
    opened: bool = False
    then: ConstraintFactory | None = None

    def __call__(self, target: "Target") -> Constraint:
        """The state for one answer.

        Raises:
            ConstraintError: the budget is negative, or whatever `then` refuses.
        """
        if self.budget is not None and self.budget < 0:
            raise ConstraintError(f"thinking_budget {self.budget} is out of range: give 0 or more tokens")
        start, end = target.tokenizer.think_start_tokens, target.tokenizer.think_end_tokens
        block = _Block(tuple(start or ()), tuple(end or ()), self.budget, inside=self.opened, over=not (start and end))
        return _Reasoning(block, self.then(target) if self.then is not None else None, target)


@dataclass(frozen=True)
class _Block:
    """Where a text stands in its think block: `count` tokens into it, `matched` tokens into the next marker."""

    start: tuple[int, ...]
    end: tuple[int, ...]
    budget: int | None
    inside: bool
    over: bool
    count: int = 0
    matched: int = 0

    @property
    def marker(self) -> tuple[int, ...]:
        return self.end if self.inside else self.start

    @property
    def due(self) -> bool:
        """Whether nothing but the (rest of the) end marker may come."""
        return self.inside and self.budget is not None and self.count >= self.budget

    def after(self, token: int) -> "_Block":
        """Where the text stands one token later."""
        tail = (*self.marker[: self.matched], token)
        matched = next(k for k in range(len(tail), -1, -1) if tail[len(tail) - k :] == self.marker[:k])
        if matched == len(self.marker):
            return replace(self, inside=not self.inside, over=self.inside, matched=0)
        return replace(self, matched=matched, count=self.count + self.inside)

    def free(self, tokens: int) -> bool:
        """Whether `tokens` more tokens can pass before the end marker is due, whatever they are."""
        if self.over or self.budget is None:
            return True
        return self.count + tokens <= self.budget + (0 if self.inside else len(self.start) - self.matched)


class _Reasoning:
    """The think block, and the constraint after it."""

    def __init__(self, block: _Block, then: Constraint | None, target: "Target") -> None:
        self._block = block
        self._then = then
        self._ids = mx.arange(target.vocabulary)[None]
        self._eos = mx.array(sorted(target.eos), dtype=mx.int32)[:, None]

    def idle(self, tokens: int) -> bool:
        if self._then is None:
            return self._block.free(tokens)
        return self._block.over and self._then.idle(tokens)

    def admitted(self, draft: Sequence[int]) -> int:
        blocks, _, rest = self._walk(draft)
        for at, (block, token) in enumerate(zip(blocks, draft, strict=False)):
            if self._forced(block) not in (None, token):
                return at
        return len(blocks) + (len(rest) if self._then is None else self._then.admitted(rest))

    def masks(self, draft: Sequence[int]) -> mx.array:
        blocks, last, rest = self._walk(draft)
        rows = [self._row(block) for block in blocks]
        if not last.over:
            rows.append(self._row(last))
        elif self._then is not None:
            rows.append(self._then.masks(rest))
        else:
            rows.append(mx.broadcast_to(self._ids >= 0, (1 + len(rest), self._ids.shape[1])))
        return mx.concatenate(rows)

    def advance(self, tokens: Sequence[int]) -> None:
        _, self._block, rest = self._walk(tokens)
        if self._then is not None:
            self._then.advance(rest)

    def _walk(self, tokens: Sequence[int]) -> tuple[list[_Block], _Block, Sequence[int]]:
        """The block before each of `tokens` that belongs to it, the block after them, and the tokens behind it."""
        blocks: list[_Block] = []
        block = self._block
        for at, token in enumerate(tokens):
            if not self._belongs(block, token):
                return blocks, replace(block, over=True), tokens[at:]
            blocks.append(block)
            block = block.after(token)
        return blocks, block, ()

    def _belongs(self, block: _Block, token: int) -> bool:
        if block.over or self._then is None or block.inside or block.matched:
            return not block.over
        return token == block.start[0] and not self._then.admitted((token,))

    def _forced(self, block: _Block) -> int | None:
        begun = self._then is not None and not block.inside and block.matched > 0
        return block.marker[block.matched] if begun or block.due else None

    def _row(self, block: _Block) -> mx.array:
        """What may follow, [1, V]."""
        forced = self._forced(block)
        if forced is not None:
            return self._ids == forced
        if self._then is None:
            return self._ids >= 0
        if block.inside:
            return ~mx.any(self._ids == self._eos, axis=0, keepdims=True)
        return self._then.masks(()) | (self._ids == block.start[0])
