"""What is asked of a generation: the prompt, its limits, and how to speculate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["auto", "baseline", "lookup", "dspark", "dflash"]
MODES: tuple[Mode, ...] = ("auto", "baseline", "lookup", "dspark", "dflash")
Cap = int | Literal["auto"]


@dataclass(frozen=True)
class SpeculationOptions:
    """A caller's wishes; `None` and `auto` leave the choice to the loaded pair.

    `cap` bounds the proposals verified in one round, `lookup` allows draft-free continuations from the context,
    `confidence` stops a draft where the head's own estimate of acceptance falls below it (0 to 1, 0 disables).
    """

    mode: Mode = "auto"
    cap: Cap | None = None
    lookup: bool | None = None
    confidence: float | None = None


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
class Request:
    """One generation.

    `prompt` holds token ids, at least one. `stop` strings end the text before their first character. `cancelled` is
    polled at each round border and each prefill chunk; it must be quick and must not raise.
    """

    prompt: Sequence[int]
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    speculation: SpeculationOptions = SpeculationOptions()
    cancelled: Callable[[], bool] = lambda: False
