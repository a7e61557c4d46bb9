"""What an answer took, in the figures that clients are told. What is not known is None."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark.decoding.events import Statistics, TokenLogprob
from dspark.server.parts import Scores, TokenScore, Usage

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


@dataclass(frozen=True)
class Run:
    """What the decoder's statistics do not hold: how it ran, and the machine around it.

    `ttft_seconds` and `total_seconds` are counted from the arrival of the request. `ceiling_tokens_per_second` is what
    plain decoding can reach at this depth with the machine's measured bandwidth.
    """

    mode: str
    cap: int | str | None = None
    ttft_seconds: float | None = None
    total_seconds: float | None = None
    ceiling_tokens_per_second: float | None = None


def usage(told: Statistics, run: Run, reasoning_tokens: int) -> Usage:
    """The usage of an answer."""
    new = told.prompt_tokens - told.cached_tokens
    return Usage(
        prompt_tokens=told.prompt_tokens,
        completion_tokens=told.completion_tokens,
        cached_tokens=told.cached_tokens,
        reasoning_tokens=reasoning_tokens,
        ttft_seconds=run.ttft_seconds,
        total_seconds=run.total_seconds,
        prompt_tokens_per_second=_ratio(new, told.prefill_seconds),
        generation_tokens_per_second=told.decode_tokens_per_second,
    )


def figures(told: Statistics, run: Run) -> dict[str, Any]:
    """The `x_mlx_dspark` block of an answer."""
    rate = told.decode_tokens_per_second
    lookups = {"lookup_rounds": told.lookup_rounds} if told.lookup_rounds else {}
    return {
        "mode": run.mode,
        "cap": run.cap,
        "accept_len": told.accept_len,
        "tokens_per_sec": _ratio(told.completion_tokens, told.total_seconds),
        "decode_tokens_per_sec": rate,
        "target_forwards": told.target_forwards,
        **lookups,
        "prompt_tokens": told.prompt_tokens,
        "cached_tokens": told.cached_tokens,
        "completion_tokens": told.completion_tokens,
        "context_tokens": told.prompt_tokens + told.completion_tokens,
        "prefill_seconds": told.prefill_seconds,
        "decode_seconds": told.decode_seconds,
        "ttft_seconds": run.ttft_seconds,
        "prefill_tokens_per_sec": told.prefill_tokens_per_second,
        "ceiling_tokens_per_sec": run.ceiling_tokens_per_second,
        "roofline_ratio": None if rate is None else _ratio(rate, run.ceiling_tokens_per_second),
        "decay_ratio": told.decay_ratio,
        "swap_delta_bytes": told.swap_delta_bytes,
        "cold": told.cold,
    }


def reasoning_tokens(tokenizer: "TokenizerWrapper", tokens: Sequence[int], characters: int) -> int:
    """How many of an answer's `tokens` it takes to write its first `characters`, its thoughts."""
    return bisect_left(
        range(len(tokens)), characters, key=lambda count: len(str(tokenizer.decode(list(tokens[:count]))))
    )


def scores(tokenizer: "TokenizerWrapper", logprobs: Iterable[TokenLogprob]) -> Scores:
    """Log-probabilities with the texts of their tokens."""
    return Scores(
        tuple(
            _score(tokenizer, entry.token, entry.logprob, tuple(_score(tokenizer, *other) for other in entry.top))
            for entry in logprobs
        )
    )


def _score(tokenizer: "TokenizerWrapper", token: int, logprob: float, top: tuple[TokenScore, ...] = ()) -> TokenScore:
    name = str(tokenizer.convert_ids_to_tokens(token))
    if byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", name):
        data = bytes.fromhex(byte[1])
        return TokenScore(data.decode(errors="replace"), data, logprob, top)
    text = str(tokenizer.decode([token]))
    if name.startswith("\u2581") and not text.startswith(" "):  # a blank that decoding drops at the start of a text
        text = f" {text}"
    return TokenScore(text, None if "\ufffd" in text else text.encode(), logprob, top)


def _ratio(amount: float, over: float | None) -> float | None:
    return amount / over if amount > 0 and over is not None and over > 0 else None
