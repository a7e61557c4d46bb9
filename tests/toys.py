"""Toy targets and drafters whose every step is known beforehand.

The scripted target's greedy answer is a list, and it gives it only while its cache holds exactly the tokens it should:
any token fed and not rolled back, or rolled back too far, turns all later output into junk. Hidden rows are token ids,
so that a drafter's context can be read like a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import cache as mlx_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from dspark.drafters.drafter import Draft
from dspark.targets.target import Target

EOS = 2
VOCABULARY = 64
JUNK = 63
WINDOW = 512
# Ids 32..47 are pieces of more than one letter, 48..53 single bytes of multi-byte characters, the rest single letters.
PIECES = {
    **{
        32 + i: piece
        for i, piece in enumerate(["ab", "bc", "abc", " a", "\n", "cab", "aa", " ", "STOP", "ST", "OP", "bb"])
    },
    **{48 + i: f"<0x{byte:02X}>" for i, byte in enumerate("é€".encode())},
}


def tokenizer() -> TokenizerWrapper:
    """64 pieces, decoded by joining them; ids 48.. are bytes."""
    vocabulary = {PIECES.get(i, f"{'xyzuvw'[i // 26]}{i}" if i >= 26 else chr(97 + i)): i for i in range(VOCABULARY)}
    vocabulary = {("</s>" if i == EOS else text): i for text, i in vocabulary.items()}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>"), eos_token_ids=[EOS])


class _Layer(nn.Module):
    """Passes token ids through as hidden rows, and remembers them in its cache."""

    def __call__(self, hidden: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        held, _ = cache.update_and_fetch(hidden[:, None], hidden[:, None])
        self.held = [int(t) for t in held[0, 0, :, 0].tolist()]
        return hidden


class ScriptedModel(nn.Module):
    """Says `script` at the positions after the prompt, if and only if its cache is exactly right."""

    def __init__(self, prompt: Sequence[int], script: Sequence[int], depth: int = 3) -> None:
        super().__init__()
        self.layers = [_Layer() for _ in range(depth)]
        self.truth = [*prompt, *script]
        self.fault: Callable[[int], None] | None = None
        self.calls = 0

    def make_cache(self) -> list[Any]:
        return [mlx_cache.KVCache() for _ in self.layers]

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        self.calls += 1
        hidden = inputs[..., None].astype(mx.float32)
        for index, (layer, entry) in enumerate(zip(self.layers, cache, strict=True)):
            hidden = layer(hidden, None, entry)
            if self.fault is not None and index == 1:
                self.fault(self.calls)
        width, held = inputs.shape[1], self.layers[-1].held
        choices = [self._next(held[: len(held) - width + j + 1]) for j in range(width)]
        return (mx.arange(VOCABULARY)[None] == mx.array(choices)[:, None])[None] * 10.0 + 0.0 * hidden

    def _next(self, held: list[int]) -> int:
        right = held == self.truth[: len(held)] and len(held) < len(self.truth)
        return self.truth[len(held)] if right else JUNK


def scripted_target(prompt: Sequence[int], script: Sequence[int], window: int = WINDOW) -> Target:
    """A target whose greedy answer to `prompt` is `script`."""
    config = {"vocab_size": VOCABULARY, "hidden_size": 1, "max_position_embeddings": window, "model_type": "scripted"}
    return Target(ScriptedModel(prompt, script), tokenizer(), config, Path("scripted"))


@dataclass
class RecordingContext:
    """Holds tapped rows as the token ids that they are."""

    rows: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.rows)

    @property
    def arrays(self) -> list[mx.array]:
        return []

    def append(self, rows: mx.array, tokens: Sequence[int]) -> None:
        read = [int(r) for r in rows[0, :, 0].tolist()]
        assert list(tokens) == read
        self.rows += read

    def truncate(self, length: int) -> None:
        del self.rows[length:]


class ToyDrafter:
    """Proposes by `rule(truth ahead, count)`; the truth is looked up by how much the context holds."""

    taps = (0,)
    has_confidence = False

    def __init__(self, truth: Sequence[int], block: int, rule: Callable[[list[int], int], list[int]]) -> None:
        self.block = block
        self._truth = list(truth)
        self._rule = rule
        self.contexts: list[RecordingContext] = []

    def new_context(self) -> RecordingContext:
        self.contexts.append(RecordingContext())
        return self.contexts[-1]

    def draft(self, context: RecordingContext, anchor: mx.array, cap: int, pick: Any = None) -> Draft:
        assert context.rows == self._truth[: context.length], "the drafter saw a token that was not committed"
        assert int(anchor.item()) == self._truth[context.length]
        count = min(cap, self.block)
        ahead = (self._truth[context.length + 1 :] + [JUNK] * count)[:count]
        return Draft(mx.array(self._rule(ahead, count), dtype=mx.int32), None)


def oracle(ahead: list[int], count: int) -> list[int]:
    """Always right."""
    return ahead


def liar(ahead: list[int], count: int) -> list[int]:
    """Never right."""
    return [(t + 1) % 60 + 1 if (t + 1) % 60 + 1 != t else 5 for t in ahead]


def alternating(n: int) -> Callable[[list[int], int], list[int]]:
    """Right n times, then wrong."""
    return lambda ahead, count: [*ahead[:n], *liar(ahead[n:], count)]


def only_at(*positions: int) -> Callable[[list[int], int], list[int]]:
    """Right at some positions of the block only."""
    return lambda ahead, count: [t if k in positions else liar([t], 1)[0] for k, t in enumerate(ahead)]
