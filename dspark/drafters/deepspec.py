"""DeepSpec's own packaging (`Qwen3DSparkModel`): everything at the top level, canonical tap ids.

The rest of such a config is a deep copy of the target's and means nothing here (sliding windows, partial rotary,
mrope).
"""

from typing import Any

from dspark.drafters.config import DrafterConfig
from dspark.drafters.fields import Backbone, Positive, SequentialHeads, check_taps, parse
from dspark.errors import DrafterFormatError


class _File(Backbone, SequentialHeads):
    block_size: int = Positive
    mask_token_id: int
    target_layer_ids: list[int]
    num_target_layers: int = Positive
    draft_vocab_size: int | None = None


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Canonical config of a DeepSpec checkpoint.

    Raises:
        DrafterFormatError: a field is missing, wrong, or names a feature that is not read.
    """
    if fields.get("enable_qwen35_gated_q_proj"):
        raise DrafterFormatError(
            "this drafter gates its queries (enable_qwen35_gated_q_proj), which is not supported yet"
        )
    file = parse(_File, fields, "DeepSpec packaging")
    if file.draft_vocab_size not in (None, file.vocab_size):
        raise DrafterFormatError(
            f"the drafter's draft_vocab_size {file.draft_vocab_size} differs from its vocab_size {file.vocab_size}, "
            "which this packaging cannot map"
        )
    return DrafterConfig(
        kind="dspark",
        packaging="deepspec",
        block=file.block_size,
        taps=check_taps(file.target_layer_ids),
        mask_id=file.mask_token_id,
        target_layers=file.num_target_layers,
        draft_vocabulary=file.vocab_size,
        markov=file.markov(),
        confidence=file.confidence(),
        quantization=fields.get("quantization"),
        **file.canonical(),
    )
