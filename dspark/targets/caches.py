"""The target's cache: what it holds, and giving back exactly what was not committed."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import cache as mlx_cache

from dspark.errors import PairingError, RollbackError
from dspark.targets.recurrence import Recorder
from dspark.targets.rewind import Growing, Replaced, Rewinder, State, leaves, rewinder, state_of

Rollback = Literal["trim", "recorded", "replay"]
# Why a checkpoint is where it is: every so many tokens, where a prompt stays the same next time, where prompts parted.
Reason = Literal["rung", "stable", "anchor"]

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


@dataclass(frozen=True)
class Checkpoint:
    """A length that a cache can go back to at any later time: the state of every layer that would forget it."""

    length: int
    reason: Reason
    states: tuple[State | None, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return _nbytes([state for state in self.states if state is not None])


class TargetCache:
    """The per-layer caches of one sequence, and how many tokens they hold.

    Every forward goes through `writing`. Until the next one begins, `truncate` can go back to any token of it, exactly:
    by trimming where the caches allow it, by rebuilding recurrent state from a recording of the forward, or by going
    back to its start and running the kept tokens again. Farther back it depends on the caches: a wrapped ring and a
    recurrent state have forgotten what they were, and then the cache goes back to a checkpoint, or is emptied, rather
    than left wrong.
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
        self.checkpoints: tuple[Checkpoint, ...] = ()
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

        Where these tokens cannot be had exactly, it goes back to the newest checkpoint among them, or to none at all.

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
            self._go_back(length)
        self.checkpoints = tuple(one for one in self.checkpoints if one.length <= self.length)

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

    def _go_back(self, length: int) -> None:
        """To the newest checkpoint within `length`."""
        if (found := next((one for one in reversed(self.checkpoints) if one.length <= length), None)) is None:
            self._empty()
            return
        for one, state in zip(self._rewinders, found.states, strict=True):
            if state is None:
                one.rewind(found.length)
            else:
                one.put_back(state)
        self._stand_at(found.length)

    def forgets(self, length: int) -> bool:
        """Whether at `length` tokens it may only be able to go back to checkpoints."""
        return any(one.forgets(length) for one in self._rewinders)

    @property
    def anywhere(self) -> bool:
        """Whether it can go back to any length."""
        return all(one.anywhere for one in self._rewinders)

    def reach(self, length: int) -> int:
        """How many of the first `length` tokens `truncate` is sure to leave."""
        if length >= self.length:
            return self.length
        if self.anywhere:
            return length
        return max((one.length for one in self.checkpoints if one.length <= length), default=0)

    def checkpoint(self, reason: Reason) -> None:
        """Be able to come back to here. Costs what the layers hold that would forget it; no more than one a length."""
        if self.length == 0 or any(one.length == self.length for one in self.checkpoints):
            return
        made = Checkpoint(self.length, reason, tuple(one.keep() for one in self._rewinders))
        mx.async_eval([array for state in made.states if state is not None for array in _arrays(state)])
        self.checkpoints += (made,)

    def thin(self, kept: Callable[[Checkpoint], bool]) -> None:
        """Let go of the checkpoints that `kept` does not hold for."""
        self.checkpoints = tuple(one for one in self.checkpoints if kept(one))

    def fork(self, length: int) -> "TargetCache":
        """A cache of its own with the first `reach(length)` tokens of this one, which stays as it is.

        They share their arrays until one of them writes.
        """
        twin = self.with_entries([_twin(entry) for entry in self.entries], self.length, self.checkpoints)
        twin.truncate(twin.reach(length))
        for one in twin._rewinders:
            one.slim()
        return twin

    def with_entries(self, entries: list[Any], length: int, checkpoints: tuple[Checkpoint, ...]) -> "TargetCache":
        """A cache of the same model with other contents."""
        made = TargetCache(entries, self._model, self._recorder, self._kv_bits)
        made.checkpoints = checkpoints
        made._stand_at(length)
        return made

    def _stand_at(self, length: int) -> None:
        """The caches hold `length` tokens, and no forward to take back."""
        self.length = self._start = length
        self._tokens = None
        for one in self._rewinders:
            one.mark(length, 0)

    @property
    def nbytes(self) -> int:
        """Bytes held, checkpoints included; what several share counts for each."""
        return _nbytes([vars(entry) for entry in leaves(self.entries)]) + sum(one.nbytes for one in self.checkpoints)

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


def _twin(entry: Any) -> Any:
    made = copy.copy(entry)
    if isinstance(entry, mlx_cache.CacheList):
        made.caches = tuple(_twin(child) for child in entry.caches)
    else:
        vars(made).update(state_of(entry))
    return made


def _arrays(state: Any) -> list[mx.array]:
    return [part for _, part in tree_flatten(state) if isinstance(part, mx.array)]


def _nbytes(states: list[State]) -> int:
    return sum(array.nbytes for array in _arrays(states))


def _flatten(state: Any) -> list[Any]:
    if isinstance(state, (list, tuple)):
        return [leaf for part in state for leaf in _flatten(part)]
    return [state]
