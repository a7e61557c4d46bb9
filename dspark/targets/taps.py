"""Hidden taps: reading the residual stream behind chosen decoder layers; the model stays as it was for all others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn


class HiddenTaps:
    """Records what leaves the tapped layers during one forward.

    Ids are canonical: i is the residual stream leaving decoder layer i, -1 the embedding output that enters layer 0.
    While a recording is open, each tapped layer object temporarily has a subclass of its own class, so that every
    attribute look-up on it still works; afterwards the model is as mlx-lm made it.
    """

    def __init__(self, layers: list[nn.Module], ids: tuple[int, ...]) -> None:
        self.ids = ids
        self._rows: dict[int, mx.array] = {}
        tapped = sorted({max(i, 0) for i in ids})
        self._swaps = [(layers[i], type(layers[i]), self._tapped_class(layers[i], i)) for i in tapped]

    def _tapped_class(self, layer: nn.Module, index: int) -> type[nn.Module]:
        keep_input = index == 0 and -1 in self.ids
        keep_output = index in self.ids
        rows = self._rows
        plain: Callable[..., Any] = type(layer).__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if keep_input:
                rows[-1] = args[0]
            out = plain(module, *args, **kwargs)
            if keep_output:
                # Some families return (hidden, extras).
                rows[index] = out[0] if isinstance(out, tuple) else out
            return out

        return type(type(layer).__name__, (type(layer),), {"__call__": call})

    @contextmanager
    def recording(self) -> Iterator[Callable[[], mx.array]]:
        """Open a recording; the value, called after the forward, gives the rows [B, S, taps * d] in tap order."""
        self._rows.clear()
        try:
            for layer, _, tapped in self._swaps:
                layer.__class__ = tapped
            yield self._joined
        finally:
            for layer, plain, _ in self._swaps:
                layer.__class__ = plain
            self._rows.clear()

    def _joined(self) -> mx.array:
        return mx.concatenate([self._rows[i] for i in self.ids], axis=-1)
