"""What a target keeps in memory a token, by layer kind, and what it reads for one. Shapes alone are looked at."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import cache as mlx_cache

from dspark.errors import CheckpointError
from dspark.targets.rewind import leaves
from dspark.targets.target import Target
from dspark.targets.weighing import weigh

# Caches grow in steps of 256 rows: at a multiple of it they hold no row that is not used.
_ROWS = 256


@dataclass(frozen=True)
class CacheFootprint:
    """Bytes of one sequence's cache: `per_token` where all is kept, `rings` of (bytes a token, window), `fixed`."""

    per_token: int
    rings: tuple[tuple[float, int], ...]
    fixed: int

    def at(self, tokens: int) -> int:
        """Bytes at a context of `tokens`."""
        rings = sum(each * min(tokens, window) for each, window in self.rings)
        return int(self.per_token * tokens + rings + self.fixed)

    def longest(self, room_bytes: int, window: int) -> int:
        """The longest context, up to `window`, whose cache takes at most `room_bytes`."""
        low, high = 0, window
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.at(middle) <= room_bytes else (low, middle - 1)
        return low


@dataclass(frozen=True)
class Footprint:
    """`bytes_per_token` are weights read for one decoded token, None where unknown; `cache` is what a context takes."""

    bytes_per_token: int | None
    cache: CacheFootprint


def cache_footprint(target: Target) -> CacheFootprint:
    """Measured on the shapes of a cache that was written lazily and is never computed."""
    cache = target.new_cache()
    target.tap(())
    target.forward(mx.zeros((1, _ROWS), dtype=mx.int32), cache)
    per_token, fixed, rings = 0, 0, []
    for entry in leaves(cache.entries):
        if isinstance(entry, mlx_cache.RotatingKVCache):
            rings.append((_held(entry) / _ROWS, int(entry.max_size)))
        elif hasattr(entry, "offset"):
            per_token += _held(entry) // _ROWS
        else:
            fixed += _held(entry)
    return CacheFootprint(per_token, tuple(rings), fixed)


def bytes_per_token(target: Target) -> int | None:
    """Weight bytes that one decoded token reads; None for a model that cannot be weighed."""
    try:
        return weigh(target).weight_bytes
    except CheckpointError:
        return None


def _held(entry: Any) -> int:
    return int(sum(part.nbytes for _, part in tree_flatten(entry.state) if isinstance(part, mx.array)))
