"""z-lab's DFlash packaging (`DFlashDraftModel`) and its second generation (`DFlash2DraftModel`).

The block is the anchor and its masks; each slot predicts the token at its own position. Windows are the drafter's own.
"""

from typing import Any

from pydantic import Field

from dspark.drafters.config import ConvolutionConfig, DrafterConfig, LayerConfig, SelectorConfig
from dspark.drafters.fields import (
    Backbone,
    Block,
    Few,
    SequentialHeads,
    Size,
    Windows,
    check_taps,
    lifted,
    parse,
    slots,
)
from dspark.errors import DrafterFormatError

_AMBIGUOUS_BLOCK = 16


class _File(Backbone, Block, Windows, SequentialHeads):
    draft_vocab_size: int | None = None
    is_causal: bool | None = None
    causal: bool | None = None
    use_swa: bool = False
    swa_window_size: int | None = None
    attention_sink_bias: bool = False
    is_neox_style: bool = True
    logit_scale: float | None = None
    output_multiplier: float | None = None
    input_embedding_scale: float | None = None
    final_logit_softcapping: float | None = None

    def attention(self) -> tuple[LayerConfig, ...]:
        """Windows and causality of the layers: an explicit word wins, else sliding layers are causal."""
        explicit = self.is_causal if self.is_causal is not None else self.causal
        if self.use_swa:
            window = self.swa_window_size or self.sliding_window
            if not window:
                raise DrafterFormatError("the drafter says use_swa but no swa_window_size; fetch its config again")
            return (LayerConfig(window=window, causal=bool(explicit)),) * self.num_hidden_layers
        return tuple(
            LayerConfig(window=window, causal=window is not None if explicit is None else explicit)
            for window in self.windows(self.num_hidden_layers)
        )


class _SecondFile(_File):
    conv_kernel_size: int = Few
    conv_group_size: int = Size
    selector_rank: int = Size
    selector_top_k: int = Field(default=16, gt=0)


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Canonical config of a DFlash checkpoint, or of a DSpark head that a fork labelled as one.

    Raises:
        DrafterFormatError: a field is missing, wrong or ambiguous.
    """
    file = parse(_File, lifted(fields, "dflash_config"), "DFlash packaging")
    if file.markov_rank == 0:
        return _config(file, fields)
    if file.block_size == _AMBIGUOUS_BLOCK:
        raise DrafterFormatError(
            f"a DFlashDraftModel with a Markov head and block_size {_AMBIGUOUS_BLOCK} does not tell which slot "
            "predicts first: its slot layout cannot be determined"
        )
    return _config(
        file,
        fields,
        kind="dspark",
        markov=file.markov(),
        confidence=file.confidence(file.block_size),
        open=("layout",),
        **slots(file.block_size, True),
    )


def translate_second(fields: dict[str, Any]) -> DrafterConfig:
    """Canonical config of a DFlash 2 checkpoint.

    Raises:
        DrafterFormatError: a field is missing or wrong.
    """
    file = parse(_SecondFile, lifted(fields, "dflash_config"), "DFlash 2 packaging")
    if file.hidden_size % file.conv_group_size:
        raise DrafterFormatError(
            f"the drafter's conv_group_size {file.conv_group_size} does not divide its hidden_size {file.hidden_size}"
        )
    return _config(
        file,
        fields,
        packaging="dflash2",
        convolution=ConvolutionConfig(file.conv_kernel_size, file.conv_group_size),
        selector=SelectorConfig(file.selector_rank, file.selector_top_k),
    )


def _config(file: _File, fields: dict[str, Any], **special: Any) -> DrafterConfig:
    scales = {scale for scale in (file.logit_scale, file.output_multiplier) if scale is not None}
    if len(scales) > 1:
        raise DrafterFormatError(f"the drafter's logit_scale and output_multiplier differ ({scales}); one is wrong")
    terms: dict[str, Any] = {
        "kind": "dflash",
        "packaging": "dflash",
        **slots(file.block_size, False),
        "taps": check_taps(file.target_layer_ids),
        "mask_id": file.mask_token_id,
        "target_layers": file.num_target_layers,
        "draft_vocabulary": file.draft_vocab_size or file.vocab_size,
        "rope": file.rope(scaled=True, traditional=not file.is_neox_style),
        "layers": file.attention(),
        "attention_sinks": file.attention_sink_bias,
        "embedding_scale": file.input_embedding_scale,
        "output_scale": scales.pop() if scales else None,
        "softcap": file.final_logit_softcapping,
        "quantization": fields.get("quantization"),
        **file.canonical(),
    }
    return DrafterConfig(**{**terms, **special})
