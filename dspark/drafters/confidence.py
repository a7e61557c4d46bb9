"""The confidence head (specification 1.8)."""

import mlx.core as mx
import mlx.nn as nn

from dspark.drafters.config import ConfidenceConfig


class ConfidenceHead(nn.Module):
    """Chance that the token of a step is accepted, before it is drawn: σ((P [h ; e] + b) / T)."""

    def __init__(self, config: ConfidenceConfig, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.proj = nn.Linear(hidden_size + (rank if config.with_markov else 0), 1)
        self._temperatures = None if config.temperatures is None else mx.array(config.temperatures)

    def __call__(self, hidden: mx.array, previous: mx.array | None) -> mx.array:
        """[n] chances for hidden rows [n, d] and, where the head reads them, Markov rows [n, r] before."""
        rows = hidden if previous is None else mx.concatenate([hidden, previous], axis=-1)
        logits = self.proj(rows).astype(mx.float32).squeeze(-1)
        if self._temperatures is not None:
            logits = logits / self._temperatures[: logits.shape[0]]
        return mx.sigmoid(logits)
