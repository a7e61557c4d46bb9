"""Hidden taps: reading the residual stream between chosen decoder layers; the model stays as it was for all others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from dspark.errors import PairingError


class HiddenTaps:
    """Records what enters the layers behind the tapped ones during one forward.

    Ids are canonical: i is the residual stream that decoder layer i hands to layer i + 1, -1 the embedding output that
    enters layer 0. They count layers as a token passes them: in a model that applies its stack of L layers several
    times, L is the first layer of the second pass, and whatever the model does between passes (a norm) belongs to tap
    L - 1. Reading inputs needs no knowledge of what a family's layers return.

    While a recording is open, each tapped layer object temporarily has a subclass of its own class, so that every
    attribute look-up on it still works; afterwards the model is as mlx-lm made it.
    """

    def __init__(self, layers: list[nn.Module], ids: tuple[int, ...]) -> None:
        self.ids = ids
        self._depth = len(layers)
        self._rows: dict[int, mx.array] = {}
        self._calls: dict[int, int] = {}
        wanted = {i + 1 for i in ids}
        tapped = sorted({reader % self._depth for reader in wanted})
        self._swaps = [(layers[i], type(layers[i]), self._tapped_class(layers[i], i, wanted)) for i in tapped]

    def _tapped_class(self, layer: nn.Module, index: int, wanted: set[int]) -> type[nn.Module]:
        plain: Callable[..., Any] = type(layer).__call__
        # A class lives until the next collection of cycles: had it hold of `self`, so would the layers' weights.
        depth, rows, calls = self._depth, self._rows, self._calls

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            reader = index + depth * calls.get(index, 0)
            calls[index] = calls.get(index, 0) + 1
            if reader in wanted:
                rows[reader - 1] = args[0] if args else next(iter(kwargs.values()))
            return plain(module, *args, **kwargs)

        return type(type(layer).__name__, (type(layer),), {"__call__": call})

    @contextmanager
    def recording(self) -> Iterator[Callable[[], mx.array]]:
        """Open a recording; the value, called after the forward, gives the rows [B, S, taps * d] in tap order."""
        self._rows.clear()
        self._calls.clear()
        try:
            for layer, _, tapped in self._swaps:
                layer.__class__ = tapped
            yield self._joined
        finally:
            for layer, plain, _ in self._swaps:
                layer.__class__ = plain
            self._rows.clear()

    def _joined(self) -> mx.array:
        missing = [i for i in self.ids if i not in self._rows]
        if missing:
            raise PairingError(
                f"this model does not run its layers in a way that taps {missing} can read; leave the drafter out"
            )
        return mx.concatenate([self._rows[i] for i in self.ids], axis=-1)


def passes(layers: list[nn.Module], forward: Callable[[], Any]) -> int:
    """How many times one `forward` runs through the stack of `layers` (lazy: nothing is computed)."""
    first, calls = layers[0], 0
    plain = type(first)

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return plain.__call__(module, *args, **kwargs)

    try:
        first.__class__ = type(plain.__name__, (plain,), {"__call__": call})
        forward()
    finally:
        first.__class__ = plain
    return max(calls, 1)
