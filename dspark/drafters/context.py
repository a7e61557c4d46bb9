"""The drafter's context cache: keys and values of committed tokens only, so it never needs a rollback."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from dspark.drafters.backbone import Backbone
from dspark.drafters.keyvalues import KeyValues

# Rows kept unprojected between drafts before they are absorbed; bounds memory while speculation is parked.
_PENDING_ROWS = 64


class ContextCache:
    """Per-layer keys and values of one sequence, plus the newest tapped rows not projected yet.

    Rows are projected at the next draft, together with the block, which costs no pass of its own.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self.layers = [KeyValues() for _ in backbone.layers]
        self._projected = 0
        self._pending: list[mx.array] = []

    @property
    def length(self) -> int:
        """Committed tokens held."""
        return self._projected + self._pending_rows

    @property
    def _pending_rows(self) -> int:
        return sum(rows.shape[1] for rows in self._pending)

    def append(self, rows: mx.array | None, tokens: Sequence[int] = ()) -> None:
        """Add tapped rows [1, n, m·d] of n committed tokens; the tokens themselves are not needed."""
        assert rows is not None
        self._pending.append(rows)
        if self._pending_rows > _PENDING_ROWS:
            features = self.pending_features()
            assert features is not None
            self._backbone.absorb(features, self.layers)
            self.settle_pending()
            # Nothing else computes these until the next draft, which may be far away; the rows must not pile up.
            mx.async_eval(*self.arrays)

    def pending_features(self) -> mx.array | None:
        """Context features [1, n, d] of the rows that are not in `layers` yet, or None."""
        if not self._pending:
            return None
        rows = self._pending[0] if len(self._pending) == 1 else mx.concatenate(self._pending, axis=1)
        return self._backbone.features(rows)

    def settle_pending(self) -> None:
        """The pending rows are now in `layers`."""
        self._projected += self._pending_rows
        self._pending = []

    def truncate(self, length: int) -> None:
        """Forget rows after the first `length`, and whatever a failed draft left in some layers only."""
        keep = max(length - self._projected, 0)
        kept: list[mx.array] = []
        for rows in self._pending:
            if keep > 0:
                kept.append(rows[:, :keep])
                keep -= kept[-1].shape[1]
        self._pending = kept
        self._projected = min(self._projected, length)
        for layer in self.layers:
            layer.truncate(self._projected)

    def fork(self, length: int) -> "ContextCache":
        """A context of its own with the first `length` rows of this one, which stays as it is."""
        made = ContextCache(self._backbone)
        made.layers = [layer.fork(min(self._projected, length)) for layer in self.layers]
        made._projected = min(self._projected, length)
        made._pending = list(self._pending)
        made.truncate(length)
        return made

    def state(self) -> dict[str, Any]:
        """All that is held, for `resume`."""
        kept = self.fork(self.length)
        return {"layers": [layer.arrays for layer in kept.layers], "pending": kept._pending}

    def resume(self, state: dict[str, Any]) -> None:
        """Hold what another context's `state` was."""
        self.layers = [KeyValues.of(*arrays) if arrays else KeyValues() for arrays in state["layers"]]
        self._projected = self.layers[0].length
        self._pending = list(state["pending"])

    @property
    def arrays(self) -> list[mx.array]:
        """Everything held."""
        return [array for layer in self.layers for array in layer.arrays] + self._pending
