"""What reading a prompt takes at its peak, beyond what is taken already. Plain numbers."""

import math
from dataclasses import dataclass

from dspark.targets.footprint import CacheFootprint

# Caches grow in steps of this many rows.
_STEP_ROWS = 256
# A chunk no longer than this is not made shorter: below it a pass costs its weights, not its rows.
LEAST_CHUNK_TOKENS = 256
_ROUND_ROWS = 32  # the most that a round verifies


@dataclass(frozen=True)
class PrefillCost:
    """Bytes of one sequence.

    `cache` is what the target keeps, `context_bytes` what the drafter keeps a token. Of one layer at a time the cache
    lies there twice while it grows: `layer_bytes` a token. While a chunk is computed, each of its rows takes
    `row_bytes`, and `score_bytes` more for every token in front of it: attention scores, where no kernel fuses them
    away. Attention looks back at most `span` tokens (None: at all). `quantized`: whether the cache is.
    """

    cache: CacheFootprint
    context_bytes: int
    layer_bytes: int
    row_bytes: int
    score_bytes: float
    span: int | None = None
    quantized: bool = False

    def held(self, tokens: int) -> int:
        """Bytes that a context of `tokens` keeps; none before the first."""
        if tokens <= 0:
            return 0
        rows = math.ceil(tokens / _STEP_ROWS) * _STEP_ROWS
        return self.cache.at(rows) + self.context_bytes * rows

    def peak(self, tokens: int, chunk: int, *, cached: int = 0, ahead: int = 0) -> int:
        """The most that a prompt of `tokens`, `cached` of them held already, and an answer of `ahead` will add.

        `chunk` tokens are read at a time.
        """
        before = self.held(cached)
        ends = [*range(cached + chunk, tokens, chunk), tokens]
        reading = max(self.held(end) + self._transient(min(chunk, end - cached), end) for end in ends)
        decoding = self.held(tokens + ahead) + self._transient(min(_ROUND_ROWS, tokens + ahead), tokens + ahead)
        return max(reading, decoding) - before

    def needs(self, tokens: int, chunk: int, *, cached: int = 0, ahead: int = 0) -> int:
        """What must be free for it: the peak, and a layer's scores once more.

        Where no kernel fuses them away, those of a layer may be made before the device has let go of the layer's
        before; how often is a matter of timing, and under a hard limit once is too often.
        """
        rows = min(chunk, tokens - cached)
        return self.peak(tokens, chunk, cached=cached, ahead=ahead) + int(
            rows * self.score_bytes * self._seen(rows, tokens)
        )

    def chunk(self, room_bytes: int, tokens: int, most: int, *, cached: int = 0, ahead: int = 0) -> int | None:
        """The longest chunk, `most` or a half of it and so on, whose needs fit; None where none does."""
        while self.needs(tokens, most, cached=cached, ahead=ahead) > room_bytes:
            if most <= LEAST_CHUNK_TOKENS:
                return None
            most = max(most // 2, LEAST_CHUNK_TOKENS)
        return most

    def longest(self, room_bytes: int, most: int) -> int:
        """The longest prompt, up to `most` tokens, that can be read inside `room_bytes` in the shortest chunks."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.needs(middle, LEAST_CHUNK_TOKENS) <= room_bytes
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _transient(self, rows: int, depth: int) -> int:
        return int(
            rows * (self.row_bytes + self.score_bytes * self._seen(rows, depth)) + (depth - rows) * self.layer_bytes
        )

    def _seen(self, rows: int, depth: int) -> int:
        return depth if self.span is None else min(depth, self.span + rows)
