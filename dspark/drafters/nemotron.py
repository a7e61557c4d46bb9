"""Nemotron's packaging: a `Qwen3DSparkModel` by name, but causal, windowed, with attention sinks.

The anchor's slot predicts nothing. Some facts are written two or three times; all of them must agree.
"""

from typing import Any

from dspark.drafters.config import DrafterConfig, LayerConfig
from dspark.drafters.fields import (
    Backbone,
    Block,
    SequentialHeads,
    Windows,
    anchor_predicts,
    check_taps,
    lifted,
    parse,
    slots,
)
from dspark.errors import DrafterFormatError

_SIGNS = ("dspark_bonus_anchor", "dflash_query_causal", "sample_from_anchor", "use_swa", "attention_sink_bias")


class _File(Backbone, Block, SequentialHeads, Windows):
    sample_from_anchor: bool | None = None
    dspark_bonus_anchor: bool | None = None
    causal: bool | None = None
    dflash_query_causal: bool | None = None
    use_swa: bool | None = None
    swa_window_size: int | None = None
    attention_sink_bias: bool = False
    eagle_aux_hidden_state_layer_ids: list[int] | None = None


def recognises(fields: dict[str, Any]) -> bool:
    """Whether a `Qwen3DSparkModel` config is of this kind."""
    nested = fields.get("dflash_config")
    return any(sign in fields or (isinstance(nested, dict) and sign in nested) for sign in _SIGNS)


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Canonical config of a Nemotron checkpoint.

    Raises:
        DrafterFormatError: a field is missing or wrong, or two of them contradict each other.
    """
    file = parse(_File, lifted(fields, "dflash_config"), "Nemotron packaging")
    taps = check_taps(file.target_layer_ids)
    auxiliary = file.eagle_aux_hidden_state_layer_ids
    if auxiliary is not None and auxiliary != [tap + 1 for tap in taps]:
        raise DrafterFormatError(
            f"the drafter's eagle_aux_hidden_state_layer_ids {auxiliary} are not its target_layer_ids {list(taps)} "
            "plus one; one of them is wrong"
        )
    bonus = None if file.dspark_bonus_anchor is None else not file.dspark_bonus_anchor
    predicts = _agreed("sample_from_anchor", file.sample_from_anchor, "dspark_bonus_anchor", bonus)
    causal = _agreed("causal", file.causal, "dflash_query_causal", file.dflash_query_causal)
    layout = slots(file.block_size, anchor_predicts(file.block_size, None, predicts) is not False)
    return DrafterConfig(
        kind="dspark",
        packaging="nemotron",
        taps=taps,
        mask_id=file.mask_token_id,
        target_layers=file.num_target_layers,
        draft_vocabulary=file.vocab_size,
        markov=file.markov(),
        confidence=file.confidence(layout["block"]),
        rope=file.rope(scaled=True),
        layers=tuple(LayerConfig(window=window, causal=bool(causal)) for window in _windows(file)),
        attention_sinks=file.attention_sink_bias,
        quantization=fields.get("quantization"),
        open=("layout",) if predicts is None else (),
        **layout,
        **file.canonical(),
    )


def _windows(file: _File) -> tuple[int | None, ...]:
    windows = file.windows(file.num_hidden_layers)
    if file.use_swa is None:
        return windows
    if not file.use_swa:
        return (None,) * file.num_hidden_layers
    width = file.swa_window_size or file.sliding_window
    if not width:
        raise DrafterFormatError("the drafter says use_swa but no swa_window_size; fetch its config again")
    if {window for window in windows if window is not None} - {width}:
        raise DrafterFormatError(
            f"the drafter's sliding_window {file.sliding_window} contradicts its swa_window_size {width}"
        )
    return (width,) * file.num_hidden_layers


def _agreed(name: str, value: bool | None, other_name: str, other: bool | None) -> bool | None:
    if value is not None and other is not None and value != other:
        raise DrafterFormatError(f"the drafter's {name} and {other_name} contradict each other; one of them is wrong")
    return other if value is None else value
