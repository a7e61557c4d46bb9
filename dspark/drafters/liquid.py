"""LiquidAI's packaging (`Lfm2DSparkDraftModel`): every slot proposes, and rotations pair neighbouring dimensions."""

from typing import Any

from dspark.drafters.config import DrafterConfig
from dspark.drafters.fields import DSparkHead, lifted, parse


class _File(DSparkHead):
    rope_is_neox_style: bool | None = None


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Canonical config of a LiquidAI checkpoint.

    Raises:
        DrafterFormatError: a field is missing or wrong.
    """
    file = parse(_File, lifted(fields, "dflash_config"), "LiquidAI packaging")
    return DrafterConfig(
        packaging="liquid",
        rope=file.rope(scaled=True, traditional=file.rope_is_neox_style is False),
        layers=file.full_attention(),
        open=("rope",) if file.rope_is_neox_style is None else (),
        **file.dspark(fields.get("quantization")),
    )
