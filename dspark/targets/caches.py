"""The target's cache: what it holds, and giving back exactly what was not committed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import cache as mlx_cache

from dspark.errors import PairingError, RollbackError
from dspark.targets.recurrence import Recorder
from dspark.targets.rewind import Growing, Replaced, Rewinder, leaves, rewinder

Rollback = Literal["trim", "recorded", "replay"]

# Wider forwards read a prompt; their rows are kept or dropped as a whole.
_MOST_RECORDED_ROWS = 64
_GROUP_SIZES = (64, 32)


@dataclass(frozen=True)
class KVBits:
    """Bits of keys and values in full-attention layers. Rings stay as they are: their window bounds them already."""

    bits: int

    def quantized(self, entry: mlx_cache.KVCache) -> mlx_cache.QuantizedKVCache:
        """The same rows, quantized.

        Raises:
            PairingError: the head width does not divide into groups.
        """
        widths = (entry.keys.shape[-1], entry.values.shape[-1])
        size = next((size for size in _GROUP_SIZES if all(width % size == 0 for width in widths)), None)
        if size is None:
            raise PairingError(
                f"a KV cache of {self.bits} bits needs heads of a multiple of 32 features, this model's have"
                f" {widths[0]}; leave the KV bits out"
            )
        return entry.to_quantized(group_size=size, bits=self.bits)


class TargetCache:
    """The per-layer caches of one sequence, and how many tokens they hold.

    Every forward goes through `writing`. Until the next one begins, `truncate` can go back to any token of it, exactly:
    by trimming where the caches allow it, by rebuilding recurrent state from a recording of the forward, or by going
    back to its start and running the kept tokens again. Farther back it depends on the caches: a wrapped ring and a
    recurrent state have forgotten what they were, and then the cache is emptied rather than left wrong.
    """

    def __init__(
        self,
        entries: list[Any],
        model: nn.Module | None = None,
        recorder: Recorder | None = None,
        kv_bits: KVBits | None = None,
    ) -> None:
        self.entries = entries
        self.length = 0
        self._model = model
        self._recorder = recorder
        self._kv_bits = kv_bits
        self._start = 0
        self._tokens: mx.array | None = None
        self._torn = False
        self._rewinders = self._make_rewinders()

    def _make_rewinders(self) -> list[Rewinder]:
        made = (rewinder(entry) for entry in leaves(self.entries))
        return [one for one in made if one is not None]

    @property
    def rollback_refusal(self) -> str | None:
        """Why a partly rejected block cannot be taken back exactly, or None where it can."""
        foreign = sorted({type(entry).__name__ for entry in leaves(self.entries) if rewinder(entry) is None})
        return f"its cache uses {', '.join(foreign)}, which cannot be rolled back exactly" if foreign else None

    @property
    def rollback(self) -> Rollback:
        """How the newest forward's rejected rows would be taken back."""
        recurrent = [one for one in self._rewinders if isinstance(one, Replaced)]
        if not recurrent:
            return "trim"
        return "recorded" if all(one.rebuild is not None for one in recurrent) else "replay"

    @contextmanager
    def writing(self, tokens: mx.array) -> Iterator[None]:
        """Around a forward of `tokens` [1, w] over `entries`, which hold w more tokens afterwards."""
        width = tokens.shape[1]
        self._start, self._tokens, self._torn = self.length, tokens, True
        for one in self._rewinders:
            one.mark(self.length, width)
        if self._recorder is not None and 1 < width <= _MOST_RECORDED_ROWS:
            with self._recorder.recording() as tape:
                yield
            tape.attach(self._rewinders, width)
        else:
            yield
        self._torn = False
        self.length += width
        if self._kv_bits is not None:
            self._quantize(self._kv_bits)

    def _quantize(self, kv_bits: KVBits) -> None:
        # After the first forward, which is where mlx-lm's own generation does it.
        for i, plain in enumerate(self.entries):
            if type(plain) is mlx_cache.KVCache and not plain.empty():
                self.entries[i] = kv_bits.quantized(plain)
                for one in self._rewinders:
                    if isinstance(one, Growing) and one.entry is plain:
                        one.entry = self.entries[i]

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens, also what a failed forward wrote into some layers only.

        The cache is emptied (`length` 0) where these tokens cannot be had exactly.

        Raises:
            RollbackError: a layer's cache gave back another number than was asked.
        """
        if self._torn:
            self._restore()
        if length >= self.length:
            return
        if all(one.reaches(length) for one in self._rewinders):
            for one in self._rewinders:
                one.rewind(length)
            self.length = length
        elif length > self._start:
            self._replay(length - self._start)
        else:
            self._empty()

    def _restore(self) -> None:
        for one in self._rewinders:
            one.restore(self._start)
        self.length, self._torn = self._start, False

    def _replay(self, rows: int) -> None:
        """Run the first `rows` tokens of the newest forward again, from where it began. Lazy, and without logits."""
        if self._model is None or self._tokens is None:
            raise RollbackError("this cache has no model to run tokens again with; run this model with --arm baseline")
        self._restore()
        tokens = self._tokens[:, :rows]
        with self.writing(tokens):
            self._model(tokens, cache=self.entries)

    def _empty(self) -> None:
        if self._model is None:
            raise RollbackError("this cache cannot go back that far; run this model with --arm baseline")
        self.entries = mlx_cache.make_prompt_cache(self._model)
        self._rewinders = self._make_rewinders()
        self.length = self._start = 0
        self._tokens = None

    @property
    def arrays(self) -> list[mx.array]:
        """Every array the caches hold, for evaluation."""
        held: list[mx.array] = []
        for entry in self.entries:
            if not entry.empty():
                held += [part for part in _flatten(entry.state) if isinstance(part, mx.array)]
        return held


def _flatten(state: Any) -> list[Any]:
    if isinstance(state, (list, tuple)):
        return [leaf for part in state for leaf in _flatten(part)]
    return [state]
