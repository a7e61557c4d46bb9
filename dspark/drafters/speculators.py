"""The "speculators" packaging: backbone under `transformer_layer_config`, taps numbered from 1, reduced vocabularies.

Tensor `d2t` [draft vocabulary] holds offsets: target id = draft id + d2t[draft id].
"""

from typing import Any

from pydantic import Field

from dspark.drafters.config import Convention, DrafterConfig, LayerConfig
from dspark.drafters.fields import (
    Backbone,
    Few,
    Fields,
    SequentialHeads,
    Size,
    Windows,
    anchor_predicts,
    check_taps,
    parse,
    slots,
)
from dspark.errors import DrafterFormatError


class _Layers(Backbone, Windows):
    pass


class _ProposalMethod(Fields):
    speculative_tokens: int | None = None


class _Verifier(Fields):
    name_or_path: str | None = None


class _Settings(Fields):
    algorithm: str | None = None
    proposal_methods: list[_ProposalMethod] = Field(default_factory=list)
    verifier: _Verifier = _Verifier()


class _File(SequentialHeads):
    speculators_config: _Settings = _Settings()
    transformer_layer_config: _Layers
    aux_hidden_state_layer_ids: list[int]
    draft_vocab_size: int = Size
    block_size: int = Few
    mask_token_id: int = Field(ge=0)
    speculative_tokens: int | None = None
    sample_from_anchor: bool | None = None
    sliding_window_non_causal: bool = False


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Canonical config of a speculators checkpoint.

    Raises:
        DrafterFormatError: another algorithm, a missing field, or a contradiction between fields.
    """
    settings = fields.get("speculators_config") or {}
    if not isinstance(settings, dict):
        raise DrafterFormatError("the drafter's speculators_config is not an object; fetch its config again")
    algorithm = fields.get("speculators_model_type") or settings.get("algorithm") or "dspark"
    if algorithm not in ("dspark", "dflash"):
        raise DrafterFormatError(
            f"this is a speculators checkpoint of the {algorithm} algorithm; only dspark and dflash are supported"
        )
    file = parse(_File, {**fields, "speculators_config": settings}, "speculators packaging")
    tokens = next((m.speculative_tokens for m in file.speculators_config.proposal_methods), file.speculative_tokens)
    predicts = anchor_predicts(file.block_size, tokens, file.sample_from_anchor)
    undecided: tuple[Convention, ...] = ("layout",) if predicts is None and algorithm == "dspark" else ()
    # A file that does not say was written before the field existed, when the anchor's slot was unused.
    layout = slots(file.block_size, bool(predicts))
    backbone = file.transformer_layer_config
    if file.draft_vocab_size > backbone.vocab_size:
        raise DrafterFormatError(
            f"the drafter's draft_vocab_size {file.draft_vocab_size} is above its vocab_size {backbone.vocab_size}"
        )
    layers = tuple(
        LayerConfig()
        if window is None
        else LayerConfig(window=window, causal=not file.sliding_window_non_causal, per_row=False)
        for window in backbone.windows(backbone.num_hidden_layers)
    )
    return DrafterConfig(
        kind="dspark" if file.markov_rank or algorithm == "dspark" else "dflash",
        packaging="speculators",
        taps=check_taps([i - 1 for i in file.aux_hidden_state_layer_ids]),
        mask_id=file.mask_token_id,
        target_layers=None,
        draft_vocabulary=file.draft_vocab_size,
        markov=file.markov(),
        confidence=file.confidence(layout["block"]),
        rope=backbone.rope(scaled=True),
        layers=layers,
        quantization=fields.get("quantization"),
        verifier=file.speculators_config.verifier.name_or_path,
        open=("taps", *undecided),
        **layout,
        **backbone.canonical(),
    )
