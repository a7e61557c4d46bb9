"""The drafter's context cache: keys and values of committed tokens only, so it never needs a rollback."""

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from dspark.drafters.backbone import Backbone

# Rows kept unprojected between drafts before they are absorbed; bounds memory while speculation is parked.
_PENDING_ROWS = 64


class ContextCache:
    """Per-layer keys and values of one sequence, plus the newest tapped rows not projected yet.

    Rows are projected at the next draft, together with the block, which costs no pass of its own.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self.caches = [KVCache() for _ in backbone.layers]
        self._pending: list[mx.array] = []
        self._pending_rows = 0

    @property
    def length(self) -> int:
        """Committed tokens held."""
        return int(self.caches[0].offset) + self._pending_rows

    def append(self, rows: mx.array) -> None:
        """Add tapped rows [1, n, m·d] of n committed tokens."""
        self._pending.append(rows)
        self._pending_rows += rows.shape[1]
        if self._pending_rows > _PENDING_ROWS:
            features = self.take_pending()
            assert features is not None
            self._backbone.absorb(features, self.caches)

    def take_pending(self) -> mx.array | None:
        """Context features [1, n, d] of the rows not projected yet, which the caller must now put into `caches`."""
        if not self._pending:
            return None
        rows = self._pending[0] if len(self._pending) == 1 else mx.concatenate(self._pending, axis=1)
        self._pending, self._pending_rows = [], 0
        return self._backbone.features(rows)

    @property
    def arrays(self) -> list[mx.array]:
        """Everything held."""
        held = [array for cache in self.caches if not cache.empty() for array in (cache.keys, cache.values)]
        return held + self._pending
