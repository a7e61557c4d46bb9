"""Whether two answers are the same answer: token ids compared, and a difference judged by the target's own logits.

A verify pass reads several tokens at once and so runs other kernels than a one-token step; the sums inside come out in
another order and the logits differ in their last bits. Where the target's two best tokens lie that close, either is the
target's greedy choice: a tie. Everything else is a difference that speculation made, and is called one.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["identical", "tied", "diverged"]
OUTCOMES: tuple[Outcome, ...] = ("identical", "tied", "diverged")  # from best to worst

END = -1  # stands in an answer for whichever end-of-sequence token ended it

MANTISSA_BITS = {"float32": 23, "float16": 10, "bfloat16": 7}
TIE_ULPS = {"float32": 64, "float16": 8, "bfloat16": 4}
"""How many units in the last place two logits may lie apart and still be called tied.

What a wider pass changes grows with the depth of the sums behind a logit. float32 shows the rounding of a whole
network: against one-row passes, passes of 2 to 8 rows moved top-2 gaps of SmolLM2-135M by up to 13 units (CPU), and
deeper models need room above that. The half formats round the finished logits themselves: a few of their coarse steps
hold all of it.
"""

LOOP_REPEATS = 4
LOOP_TOKENS = 24
LOOP_PERIOD = 64


@dataclass(frozen=True)
class TopTwo:
    """The target's two best next tokens: `gap` is the difference of their logits, `logit` the larger of the two."""

    first: int
    second: int
    gap: float
    logit: float


@dataclass(frozen=True)
class Answer:
    """The ids of an answer, and whether it ended with an end-of-sequence token (which is not among them)."""

    tokens: tuple[int, ...]
    ended: bool

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids with `END` behind them where the answer ended by itself."""
        return (*self.tokens, END) if self.ended else self.tokens


@dataclass(frozen=True)
class Evidence:
    """A first difference: at `position` (0-based, in the answer) stood `found` where `expected` was due.

    An end-of-sequence token shows as its id; None means that the answer was over without one. `top_two` is None where
    one of the answers was over, for then there are no two tokens to weigh.
    """

    position: int
    expected: int | None
    found: int | None
    top_two: TopTwo | None
    threshold: float


@dataclass(frozen=True)
class Verdict:
    """What a comparison came to; `evidence` is None for identical answers only."""

    outcome: Outcome
    evidence: Evidence | None = None


def compare(
    expected: Answer, found: Answer, *, dtype: str, eos: Sequence[int], top_two: Callable[[tuple[int, ...]], TopTwo]
) -> Verdict:
    """Compare two answers to one prompt up to their first difference.

    `top_two` is asked at most once, with the tokens that both answers share; it gives the target's choice after them.
    `dtype` is what the target computes in.
    """
    at = first_divergence(expected.ids, found.ids)
    if at is None:
        return Verdict("identical")
    due, came = _at(expected.ids, at), _at(found.ids, at)
    if due is None or came is None:
        return Verdict("diverged", Evidence(at, _shown(due, eos), _shown(came, eos), None, tie_threshold(dtype, 32.0)))
    best = top_two(expected.tokens[:at])
    due, came = _named(due, eos, best), _named(came, eos, best)
    threshold = tie_threshold(dtype, best.logit)
    tied = {due, came} == {best.first, best.second} and 0 <= best.gap < threshold  # false for NaN, too
    return Verdict("tied" if tied else "diverged", Evidence(at, due, came, best, threshold))


def first_divergence(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """Position of the first difference, which may be the end of the shorter list; None where there is none."""
    for position, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return position
    return None if len(expected) == len(found) else min(len(expected), len(found))


def tie_threshold(dtype: str, logit: float) -> float:
    """The gap below which two logits around `logit` are tied, for a target that computes in `dtype`.

    A name that is no float format (a quantization, whose activations are half precision) counts as bfloat16.
    """
    name = dtype.removeprefix("mlx.core.")
    kind = name if name in MANTISSA_BITS else "bfloat16"
    magnitude = max(abs(logit), 1.0) if math.isfinite(logit) else 1.0
    ulp: float = 2.0 ** (math.floor(math.log2(magnitude)) - MANTISSA_BITS[kind])
    return TIE_ULPS[kind] * ulp


def worst(outcomes: Iterable[Outcome]) -> Outcome | None:
    """The worst of several outcomes; None for none."""
    return max(outcomes, key=OUTCOMES.index, default=None)


def repeating_tail(tokens: Sequence[int]) -> int | None:
    """Period of the loop that an answer has fallen into: its end says the same `period` tokens over and over.

    A loop is at least four rounds and 24 tokens long, with a period of at most 64. None where there is no loop.
    """
    for period in range(1, LOOP_PERIOD + 1):
        length = max(LOOP_REPEATS * period, LOOP_TOKENS)
        if length > len(tokens):
            continue
        tail = tokens[-length:]
        if all(tail[i] == tail[i - period] for i in range(period, length)):
            return period
    return None


def _at(ids: Sequence[int], position: int) -> int | None:
    return ids[position] if position < len(ids) else None


def _named(token: int, eos: Sequence[int], best: TopTwo) -> int:
    """`END` resolved to the end-of-sequence token that the target had in mind."""
    if token != END:
        return token
    return next((one for one in (best.first, best.second, *eos) if one in eos), END)


def _shown(token: int | None, eos: Sequence[int]) -> int | None:
    return eos[0] if token == END and eos else token
