"""The target's cache: what it holds, and giving back exactly what was not committed."""

from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as mlx_cache

from dspark.errors import RollbackError

# Caches whose `trim` moves an offset and loses nothing.
_TRIMMABLE = (mlx_cache.KVCache, mlx_cache.QuantizedKVCache, mlx_cache.ConcatenateKVCache)


class TargetCache:
    """The per-layer caches of one sequence, and how many tokens they hold."""

    def __init__(self, entries: list[Any]) -> None:
        self.entries = entries
        self.length = 0

    @property
    def rollback_refusal(self) -> str | None:
        """Why a partly rejected block cannot be taken back exactly, or None where it can."""
        foreign = sorted({type(entry).__name__ for entry in self.entries if not isinstance(entry, _TRIMMABLE)})
        return f"its cache uses {', '.join(foreign)}, which cannot be rolled back exactly" if foreign else None

    def advance(self, tokens: int) -> None:
        """Account for `tokens` that a forward has just written."""
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens, also what a failed forward wrote into some layers only.

        Raises:
            RollbackError: a layer's cache gave back another number than was asked.
        """
        for entry in self.entries:
            surplus = entry.offset - length
            given = entry.trim(surplus) if surplus > 0 else 0
            if given != max(surplus, 0):
                raise RollbackError(
                    f"{type(entry).__name__} gave back {given} of {surplus} tokens; run this model with --arm baseline"
                )
        self.length = length

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
