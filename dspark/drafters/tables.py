"""The embedding and head tables of a drafter: its own, or the target's."""

import math

import mlx.core as mx
import mlx.nn as nn

from dspark.drafters.config import DrafterConfig
from dspark.errors import PairingError
from dspark.targets.target import Target


class Tables:
    """Token ids to embeddings, hidden rows to logits, with the scales and the cap that belong to them."""

    def __init__(
        self,
        config: DrafterConfig,
        target: Target,
        embedding: nn.Module | None,
        head: nn.Module | None,
        dtype: mx.Dtype,
    ) -> None:
        """`embedding` and `head` are the checkpoint's own tables, None to share the target's.

        Raises:
            PairingError: the mask token has no row in the table that is used.
        """
        self.own = [module for module in (embedding, head) if module is not None]
        self._dtype = dtype
        self._embedding = target.embedding if embedding is None else embedding
        self._head = target.head if head is None else head
        self._scale = config.embedding_scale
        if embedding is None and self._scale is None and _is_gemma(target):
            self._scale = math.sqrt(target.hidden_size)
        self._output_scale = config.output_scale
        self._softcap = config.softcap
        if head is None and self._softcap is None and config.kind == "dflash":
            # A DFlash head imitates the target's own output; DSpark heads were trained on the raw product.
            self._softcap = target.config.get("text_config", target.config).get("final_logit_softcapping")
        rows = self._embedding.weight.shape[0]
        if config.mask_id >= rows:
            # MLX would read past the table without an error.
            raise PairingError(
                f"the drafter's mask id {config.mask_id} has no row in an embedding of {rows}; "
                "use an uncut build of the model"
            )

    def embed(self, ids: mx.array) -> mx.array:
        """Embeddings [..., d] of ids [...], in the drafter's type."""
        rows = self._embedding(ids).astype(self._dtype)
        return rows if self._scale is None else rows * self._scale

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits [n, V_d] of hidden rows [n, d], before any bias."""
        logits = self._head(hidden)
        if self._output_scale is not None:
            logits = logits * self._output_scale
        if self._softcap is not None:
            logits = mx.tanh(logits / self._softcap) * self._softcap
        return logits


def _is_gemma(target: Target) -> bool:
    """Gemma multiplies embeddings by √d outside of the table."""
    return target.family.startswith("gemma")
