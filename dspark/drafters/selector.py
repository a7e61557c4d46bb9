"""DFlash 2's candidate-path selector (specification 4.2 b)."""

import mlx.core as mx
import mlx.nn as nn

from dspark.drafters.config import SelectorConfig


class CandidateSelector(nn.Module):
    """Scores each slot's best tokens b after the token a before it: U(b) + ⟨A[a] ⊙ P h, B[b]⟩."""

    def __init__(self, config: SelectorConfig, hidden_size: int, vocabulary: int) -> None:
        super().__init__()
        self._top_k = config.top_k
        self.predecessor_codebook = mx.zeros((vocabulary, config.rank))
        self.successor_codebook = mx.zeros((vocabulary, config.rank))
        self.hidden_projection = nn.Linear(hidden_size, config.rank, bias=False)

    def candidates(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """Ids [n, k] of the best tokens of rows [n, V], and their logits."""
        best = mx.argpartition(logits, -self._top_k, axis=-1)[:, -self._top_k :]
        return best, mx.take_along_axis(logits, best, axis=-1)

    def scores(self, before: mx.array, projected: mx.array, ids: mx.array, logits: mx.array) -> mx.array:
        """[1, k] scores of one slot from the token `before` [1], `projected` [1, r] P h, `ids` and `logits` [1, k]."""
        query = self.predecessor_codebook[before] * projected
        return logits + (self.successor_codebook[ids] @ query[..., None]).squeeze(-1)
