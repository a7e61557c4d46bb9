"""DeepSpec's Gemma 4 packaging (`Gemma4DSparkModel`, specification 1.13 and 1.14)."""

import math
from typing import Any

from pydantic import Field

from dspark.drafters.config import DrafterConfig, LayerConfig, RopeConfig
from dspark.drafters.deepspec import require_full_vocabulary
from dspark.drafters.fields import Block, Few, Fields, Positive, SequentialHeads, Size, check_taps, lifted, parse
from dspark.errors import DrafterFormatError


class _FullAttention(Fields):
    rope_type: str = "proportional"
    rope_theta: float = Positive
    partial_rotary_factor: float = Field(gt=0, le=1)


class _RopeParameters(Fields):
    full_attention: _FullAttention


class _File(Block, SequentialHeads):
    hidden_size: int = Size
    intermediate_size: int = Size
    num_hidden_layers: int = Few
    num_attention_heads: int = Few
    num_key_value_heads: int | None = None
    num_global_key_value_heads: int | None = None
    global_head_dim: int = Field(gt=0, le=1 << 14)
    attention_k_eq_v: bool
    final_logit_softcapping: float | None = None
    rms_norm_eps: float = Positive
    rope_parameters: _RopeParameters
    vocab_size: int = Size
    draft_vocab_size: int | None = None
    enable_moe_block: bool = False
    hidden_size_per_layer_input: int | None = None


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Canonical config of a DeepSpec checkpoint for a Gemma 4 target.

    Raises:
        DrafterFormatError: a field is missing, wrong, or names a feature that is not read.
    """
    file = parse(_File, lifted(fields, "dspark_config"), "DeepSpec packaging for Gemma 4")
    require_full_vocabulary(file.draft_vocab_size, file.vocab_size)
    if file.enable_moe_block or file.hidden_size_per_layer_input:
        raise DrafterFormatError("Gemma drafters with experts or per-layer inputs are not supported")
    kv_heads = file.num_global_key_value_heads if file.attention_k_eq_v else file.num_key_value_heads
    if not kv_heads:
        missing = "num_global_key_value_heads" if file.attention_k_eq_v else "num_key_value_heads"
        raise DrafterFormatError(f"the drafter's config lacks {missing}; fetch it again")
    rope = file.rope_parameters.full_attention
    if rope.rope_type != "proportional":
        raise DrafterFormatError(f"Gemma drafters turn heads proportionally, not by rope_type {rope.rope_type}")
    return DrafterConfig(
        kind="dspark",
        packaging="deepspec",
        block=file.block_size,
        layout="next",
        taps=check_taps(file.target_layer_ids),
        mask_id=file.mask_token_id,
        target_layers=file.num_target_layers,
        target_hidden=file.hidden_size,
        vocabulary=file.vocab_size,
        draft_vocabulary=file.vocab_size,
        hidden_size=file.hidden_size,
        heads=file.num_attention_heads,
        kv_heads=kv_heads,
        head_dim=file.global_head_dim,
        intermediate_size=file.intermediate_size,
        eps=file.rms_norm_eps,
        rope=proportional(rope.rope_theta, rope.partial_rotary_factor),
        layers=(LayerConfig(),) * file.num_hidden_layers,
        markov=file.markov(),
        confidence=file.confidence(file.block_size),
        quantization=fields.get("quantization"),
        softcap=file.final_logit_softcapping,
        **gemma_style(file.hidden_size, key_is_value=file.attention_k_eq_v),
    )


def proportional(theta: float, factor: float) -> RopeConfig:
    """Gemma 4's positions: only the fastest `factor` of the frequencies of a whole head turn."""
    scaling = {"rope_type": "proportional", "partial_rotary_factor": factor}
    return RopeConfig(theta=theta, scaling=scaling)


def gemma_style(hidden_size: int, *, key_is_value: bool) -> dict[str, Any]:
    """What a Gemma 4 backbone does differently, in canonical terms."""
    return {
        "activation": "gelu_tanh",
        "attention_scale": 1.0,
        "key_is_value": key_is_value,
        "value_norm": True,
        "sandwich_norms": True,
        "embedding_scale": math.sqrt(hidden_size),
    }
