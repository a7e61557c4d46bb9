"""Attention of a verify pass, its queries read in chunks where that is faster.

On Metal, MLX's attention kernel for few queries takes eight of them at most, and no more than 32 when each is counted
for every query head that shares a key head. A wider pass falls to kernels made for prompts, which over a long context
take longer than several passes of the first kind. Which is faster depends on chip, shape and depth: it is tried, with
the arrays of a real pass, and the pass stays whole wherever the trial does not say otherwise.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import scaled_dot_product_attention

Mask = mx.array | str | None

# As MLX itself chooses (mlx/backend/metal/scaled_dot_product_attention.cpp).
_MOST_QUERIES = 8
_MOST_QUERY_HEADS = 32
# Over fewer keys there is nothing to gain.
_LEAST_KEYS = 1024
# Wider passes read a prompt.
_WIDEST = 64


@dataclass(frozen=True)
class Pass:
    """One layer's attention as the model asked for it: `queries` [B, H, L, D] over `keys` and `values` [B, H_kv, S, D].

    The mask is "causal", an array that broadcasts to [B, H, L, S], or None.
    """

    queries: mx.array
    keys: mx.array
    values: mx.array
    cache: Any
    scale: float
    mask: Mask

    @property
    def chunk(self) -> int:
        """The most queries that the kernel for few takes at once; 0: not even one."""
        return min(_MOST_QUERIES, _MOST_QUERY_HEADS // max(self.queries.shape[1] // self.keys.shape[1], 1))

    def whole(self) -> mx.array:
        """As the library computes it."""
        return self._rows(0, self.queries.shape[2])

    def split(self) -> mx.array:
        """The same, a chunk of queries at a time."""
        width, chunk = self.queries.shape[2], self.chunk
        return mx.concatenate([self._rows(at, min(at + chunk, width)) for at in range(0, width, chunk)], axis=2)

    def _rows(self, start: int, end: int) -> mx.array:
        width, keys, values, mask = self.queries.shape[2], self.keys, self.values, self.mask
        if isinstance(mask, str) and end < width:
            # Causal means: aligned at the last key that the last query sees.
            seen = keys.shape[2] - (width - end)
            keys, values = keys[:, :, :seen], values[:, :, :seen]
        elif isinstance(mask, mx.array) and mask.ndim > 1 and mask.shape[-2] == width:
            mask = mask[..., start:end, :]
        return scaled_dot_product_attention(
            self.queries[:, :, start:end], keys, values, cache=self.cache, scale=self.scale, mask=mask
        )

    @property
    def kind(self) -> tuple[object, ...]:
        """What decides how fast it is: shapes, types, and between which powers of two the depth lies."""
        mask = (self.mask.dtype, self.mask.shape[:-2]) if isinstance(self.mask, mx.array) else self.mask
        heads, kv_heads = self.queries.shape[:2], self.keys.shape[1]
        rows = (self.queries.shape[2], self.queries.shape[3], self.values.shape[3])
        return (*heads, kv_heads, *rows, self.queries.dtype, mask, self.keys.shape[2].bit_length())


class SplitAttention:
    """Splits the attention of one model's passes wherever `pays` says so, which is asked once for each kind of pass.

    The pass in which a kind is first met stays whole, and is the trial's material. Between passes the model and its
    library are as they were: only while one runs does the name that the model's own modules call point here.
    """

    def __init__(self, model: nn.Module, pays: Callable[[Pass], bool]) -> None:
        self._pays = pays
        self._known: dict[tuple[object, ...], bool] = {}
        self._met: dict[tuple[object, ...], Pass] = {}
        namespaces = {name: vars(sys.modules[name]) for name in {type(m).__module__ for m in model.modules()}}
        self._places = [
            (namespace, name)
            for namespace in namespaces.values()
            for name, value in namespace.items()
            if value is scaled_dot_product_attention
        ]

    @property
    def reaches(self) -> bool:
        """Whether the model's attention is the library's at all."""
        return bool(self._places)

    @contextmanager
    def over(self, width: int) -> Iterator[None]:
        """Around a forward of `width` tokens."""
        if not 1 < width <= _WIDEST:
            yield
            return
        try:
            for namespace, name in self._places:
                namespace[name] = self._attend
            yield
            met, self._met = self._met, {}
        finally:
            self._met = {}
            for namespace, name in self._places:
                namespace[name] = scaled_dot_product_attention
        for kind, one in met.items():
            self._known[kind] = self._pays(one)

    def _attend(
        self,
        queries: mx.array,
        keys: Any,
        values: Any,
        cache: Any,
        scale: float,
        mask: Mask,
        sinks: mx.array | None = None,
    ) -> mx.array:
        if sinks is None and not hasattr(cache, "bits"):
            one = Pass(queries, keys, values, cache, scale, mask)
            if self._splits(one):
                return one.split()
        return scaled_dot_product_attention(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)

    def _splits(self, one: Pass) -> bool:
        depth, width = one.keys.shape[2], one.queries.shape[2]
        if not 0 < one.chunk < width <= depth or depth < _LEAST_KEYS:
            return False
        kind = one.kind
        if kind not in self._known:
            self._met.setdefault(kind, one)
        return self._known.get(kind, False)
