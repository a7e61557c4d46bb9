"""The packaging of SpecForge and SGLang: `dflash_config.projector_type` is `dspark`, the target's tables are shared.

Despite the name of the nested group, slots are DSpark's: the labels of its training start one behind the anchor.
Rotary scaling is the drafter's own here.
"""

from typing import Any

from dspark.drafters.config import DrafterConfig, LayerConfig
from dspark.drafters.fields import DSparkHead, Windows, lifted, parse
from dspark.errors import DrafterFormatError


class _File(DSparkHead, Windows):
    projector_type: str
    attention_mode: str = "gqa"
    is_causal: bool | None = None


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Canonical config of a SpecForge checkpoint.

    Raises:
        DrafterFormatError: a field is missing, wrong, or another projector's.
    """
    file = parse(_File, lifted(fields, "dflash_config"), "SpecForge packaging")
    if file.projector_type != "dspark":
        raise DrafterFormatError(f"projector_type {file.projector_type} is another algorithm; only dspark is supported")
    if file.attention_mode not in ("gqa", "mha"):
        raise DrafterFormatError(f"attention_mode {file.attention_mode} is not supported; known are gqa and mha")
    layers = tuple(
        LayerConfig(window=window, causal=window is not None if file.is_causal is None else file.is_causal)
        for window in file.windows(file.num_hidden_layers)
    )
    return DrafterConfig(
        packaging="specforge",
        rope=file.rope(scaled=True),
        layers=layers,
        **file.dspark(fields.get("quantization")),
    )
