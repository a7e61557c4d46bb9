"""LiquidAI's packaging (`Lfm2DSparkDraftModel`): every slot proposes, and rotations pair neighbouring dimensions."""

from typing import Any

from dspark.drafters.config import DrafterConfig
from dspark.drafters.fields import Backbone, Block, SequentialHeads, check_taps, lifted, parse


class _File(Backbone, Block, SequentialHeads):
    rope_is_neox_style: bool | None = None


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Canonical config of a LiquidAI checkpoint.

    Raises:
        DrafterFormatError: a field is missing or wrong.
    """
    file = parse(_File, lifted(fields, "dflash_config"), "LiquidAI packaging")
    return DrafterConfig(
        kind="dspark",
        packaging="liquid",
        block=file.block_size,
        layout="next",
        taps=check_taps(file.target_layer_ids),
        mask_id=file.mask_token_id,
        target_layers=file.num_target_layers,
        draft_vocabulary=file.vocab_size,
        markov=file.markov(),
        confidence=file.confidence(file.block_size),
        rope=file.rope(scaled=True, traditional=file.rope_is_neox_style is False),
        layers=file.full_attention(),
        quantization=fields.get("quantization"),
        open=("rope",) if file.rope_is_neox_style is None else (),
        **file.canonical(),
    )
