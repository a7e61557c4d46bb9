"""DeepSpec's own packaging (`Qwen3DSparkModel`): everything at the top level, canonical tap ids.

The rest of such a config is a deep copy of the target's and means nothing here (sliding windows, rotary scaling,
partial rotary, mrope), with one exception: the Qwen 3.5 fork gates its queries, turns a part of each head, and stores
its norms as offsets from one.
"""

from typing import Any

from dspark.drafters.config import DrafterConfig, RopeConfig
from dspark.drafters.fields import DSparkHead, lifted, parse
from dspark.drafters.rope import is_positive
from dspark.errors import DrafterFormatError


class _File(DSparkHead):
    draft_vocab_size: int | None = None
    enable_qwen35_gated_q_proj: bool = False
    partial_rotary_factor: float | None = None


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Canonical config of a DeepSpec checkpoint.

    Raises:
        DrafterFormatError: a field is missing, wrong, or names a feature that is not read.
    """
    file = parse(_File, lifted(fields, "dspark_config", "dflash_config"), "DeepSpec packaging")
    require_full_vocabulary(file.draft_vocab_size, file.vocab_size)
    fork = file.enable_qwen35_gated_q_proj or fields.get("architectures") == ["Qwen35DSparkModel"]
    return DrafterConfig(
        packaging="deepspec",
        rope=_partial(file) if fork else file.rope(scaled=False),
        layers=file.full_attention(),
        gated_query=file.enable_qwen35_gated_q_proj,
        norm_offset=fork,
        **file.dspark(fields.get("quantization")),
    )


def require_full_vocabulary(draft: int | None, vocabulary: int) -> None:
    """Refuse a reduced vocabulary in a packaging that has no map back."""
    if draft not in (None, vocabulary):
        raise DrafterFormatError(
            f"the drafter's draft_vocab_size {draft} differs from its vocab_size {vocabulary}, "
            "which this packaging cannot map"
        )


def _partial(file: _File) -> RopeConfig:
    factor = file.partial_rotary_factor
    if factor is None:
        factor = (file.rope_parameters or {}).get("partial_rotary_factor")
    if not is_positive(factor) or not 2 <= int(file.head_dim * factor) <= file.head_dim:
        raise DrafterFormatError(
            "this drafter turns a part of each head, but its config lacks a partial_rotary_factor that tells which"
        )
    return RopeConfig(theta=file.theta(), rotated=int(file.head_dim * factor))
