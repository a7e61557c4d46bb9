"""What is asked of a generation: the prompt, its limits, and how to speculate."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dspark.errors import UsageError

if TYPE_CHECKING:
    from dspark.decoding.constraint import ConstraintFactory

Mode = Literal["auto", "baseline", "lookup", "dspark", "dflash"]
MODES: tuple[Mode, ...] = ("auto", "baseline", "lookup", "dspark", "dflash")
Cap = int | Literal["auto"]
MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True)
class SpeculationOptions:
    """A caller's wishes; `None` and `auto` leave the choice to the loaded pair.

    `cap` bounds the proposals verified in one round, `lookup` allows draft-free continuations from the context,
    `confidence` stops a draft where the head's estimate that all of it survives falls below it (0 to 1, 0 disables).
    """

    mode: Mode = "auto"
    cap: Cap | None = None
    lookup: bool | None = None
    confidence: float | None = None

    @classmethod
    def of(cls, mode: Mode, cap: Cap | None, lookup: bool | None, confidence: float | None) -> "SpeculationOptions":
        """The same from settings, where a cap of 0 is meant too: a draft of at most 0 tokens is plain decoding."""
        return cls("baseline") if cap == 0 else cls(mode, cap, lookup, confidence)


@dataclass(frozen=True)
class Speculation:
    """The same, resolved against a loaded pair: nothing is left open."""

    mode: Mode
    cap: Cap
    lookup: bool
    confidence: float

    def describe(self) -> str:
        """One line for tables: `dspark cap=auto lookup=on confidence=0`."""
        if self.mode == "baseline":
            return "baseline"
        words = [self.mode, f"cap={self.cap}"]
        if self.mode != "lookup":
            words += [f"lookup={'on' if self.lookup else 'off'}", f"confidence={self.confidence:g}"]
        return " ".join(words)


@dataclass(frozen=True)
class Sampling:
    """How a request's tokens are chosen. The default is greedy decoding.

    Filters are evaluated on the law at temperature 1, as in mlx-lm. Penalties look back over the last 20 tokens,
    prompt included, as in mlx-lm. `seed` None draws a fresh one. `top_logprobs` None reports none; n reports the chosen
    token's log-probability and the n best, of the target's raw law (before processors, filters and temperature).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_logprobs: int | None = None

    def check(self, vocabulary: int) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: naming the setting and its range.
        """
        whole = {"seed": self.seed, "top_k": self.top_k, "top_logprobs": self.top_logprobs}
        for name, number in (*whole.items(), *(("logit_bias", token) for token in self.logit_bias)):
            if number is not None and type(number) is not int:
                raise UsageError(f"{name} takes whole numbers, not {number!r}")
        for name, low, high in (
            ("temperature", 0.0, 2.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise UsageError(f"{name} {value} is out of range: give {low:g} to {high:g}")
        if self.top_p == 0.0:
            raise UsageError("top_p 0 leaves no token to choose; give more than 0, up to 1")
        if self.top_k < 0:
            raise UsageError(f"top_k {self.top_k} is out of range: give 0 (off) or more")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0.0):
            raise UsageError(
                f"repetition_penalty {self.repetition_penalty} is out of range: give more than 0 (1 is off)"
            )
        if not all(0 <= token < vocabulary and math.isfinite(bias) for token, bias in self.logit_bias.items()):
            raise UsageError(f"logit_bias must map ids below {vocabulary} to finite numbers")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise UsageError(f"top_logprobs {self.top_logprobs} is out of range: give 0 to {MAX_TOP_LOGPROBS}")


@dataclass(frozen=True)
class Request:
    """One generation.

    `prompt` holds token ids, at least one. `stop` strings end the text before their first character. `cancelled` is
    polled at each round border and each prefill chunk; it must be quick and must not raise. `constraint` says
    what the answer may consist of (a grammar, a limit on thinking); None leaves every token free. `reuse` allows to
    start from what is kept of earlier prompts, and to keep this one. `boundaries` are lengths of its beginnings that
    later prompts are likely to share (see `dspark.prefix.boundaries`); they are no more than hints.
    """

    prompt: Sequence[int]
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    speculation: SpeculationOptions = SpeculationOptions()
    sampling: Sampling = Sampling()
    cancelled: Callable[[], bool] = lambda: False
    constraint: "ConstraintFactory | None" = None
    reuse: bool = True
    boundaries: Sequence[int] = ()
