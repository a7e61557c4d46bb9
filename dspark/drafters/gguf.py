"""GGUF files of drafters (specification 5.7), read by MLX itself.

Three writers are told apart by architecture and tensor names: PrismML's (`dspark.*` tensors, canonical taps), a fork of
llama.cpp for Gemma (`markov.w1`, taps numbered from 1), and llama.cpp itself (architecture `dflash`, taps from 1).
"""

import math
import re
from pathlib import Path
from typing import Any

import mlx.core as mx

from dspark.drafters import gguf_layout
from dspark.drafters.config import (
    ConfidenceConfig,
    Convention,
    ConvolutionConfig,
    DrafterConfig,
    LayerConfig,
    MarkovConfig,
    RopeConfig,
    SelectorConfig,
)
from dspark.drafters.fields import FEW, MOST, check_taps, slots
from dspark.drafters.gemma import gemma_style, proportional
from dspark.drafters.refusals import refuse_tensors
from dspark.drafters.rope import rope_scaling
from dspark.errors import CheckpointError, DrafterFormatError

_GROUP_ROWS = 32  # MLX unpacks GGUF's own blocks as groups of 32
# Gemma 4's share of turning frequencies, for files without the table that says it.
_GEMMA_PARTIAL = 0.25
_NAMES = {
    "token_embd": "embed_tokens",
    "output": "lm_head",
    "output_norm": "norm",
    "fc": "fc",
    "dspark.fc": "fc",
    "enc.output_norm": "hidden_norm",
    "dspark.hidden_norm": "hidden_norm",
    "dspark.markov_head_a": "markov_head.markov_w1",
    "dspark.markov_head_b": "markov_head.markov_w2",
    "markov.w1": "markov_head.markov_w1",
    "markov.w2": "markov_head.markov_w2",
    "markov_w1": "markov_head.markov_w1",
    "markov_w2": "markov_head.markov_w2",
    "dspark.confidence_head": "confidence_head.proj",
    "confidence.proj": "confidence_head.proj",
    "conf_proj": "confidence_head.proj",
    "selector_hidden": "candidate_selector.hidden_projection",
    "selector_predecessor": "candidate_selector.predecessor_codebook",
    "selector_successor": "candidate_selector.successor_codebook",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_sinks": "self_attn.attention_sink_bias",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_conv_proj": "attention_conv.kernel_projection",
    "attn_conv_base": "attention_conv.base_kernel",
    "ffn_conv_proj": "mlp_conv.kernel_projection",
    "ffn_conv_base": "mlp_conv.base_kernel",
}
_GEMMA_LAYER_NAMES = {
    **_LAYER_NAMES,
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "layer_output_scale": "layer_scalar",
}
_BARE = ("_codebook", "base_kernel", "layer_scalar", "attention_sink_bias")


def read(file: Path) -> tuple[DrafterConfig, dict[str, mx.array]]:
    """The canonical config of a GGUF drafter, and its tensors by canonical names (lazy).

    Raises:
        CheckpointError: the file cannot be read.
        DrafterFormatError: it is no drafter, lacks a field, or uses a feature that is not supported.
    """
    gguf_layout.check(file)
    try:
        loaded: Any = mx.load(str(file), return_metadata=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise CheckpointError(
            f"{file} cannot be read as GGUF ({str(error).splitlines()[0]}); fetch it again, or as F16, Q8_0 or Q4_0"
        ) from error
    stored, metadata = loaded
    header = Header(metadata)
    if header.architecture not in ("dspark", "dflash"):
        raise DrafterFormatError(
            f"{file.name} is a GGUF of architecture {header.architecture}, not of a drafter that can be run here "
            "(dspark or dflash)"
        )
    if header.flag("log_snr_conditioning"):
        raise DrafterFormatError(
            "this GGUF drafter is conditioned on a noise level (log_snr_conditioning): unsupported"
        )
    refuse_tensors(stored)
    gemma = any(name.endswith(".post_attention_norm.weight") for name in stored)
    frequencies = stored.pop("rope_freqs.weight", None)
    tensors = {_canonical(name, gemma=gemma): value for name, value in _unpacked(stored).items()}
    try:
        config = translate(
            header,
            {name: tuple(value.shape) for name, value in tensors.items()},
            shifted=not any(name.startswith("dspark.") for name in stored),
            turning=None if frequencies is None else int((frequencies < 1e6).sum().item()),
            gemma=gemma,
        )
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:  # texts for numbers, rows for tables
        raise DrafterFormatError(
            f"{file.name} has a header that does not describe its drafter ({error}); convert it again"
        ) from error
    return config, tensors


class Header:
    """The metadata of a GGUF file; drafter keys carry the architecture once or, in older files, twice."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        self.architecture = str(metadata.get("general.architecture"))

    def find(self, key: str) -> Any:
        """The value under `key` as Python objects, or None."""
        arch = self.architecture
        for name in (f"{arch}.{arch}.{key}", f"{arch}.{key}", key):
            value = self._metadata.get(name)
            if value is not None:
                return value.tolist() if isinstance(value, mx.array) else value
        return None

    def need(self, *keys: str) -> Any:
        """The value under the first of `keys` that is there."""
        value = next((found for key in keys if (found := self.find(key)) is not None), None)
        if value is None:
            raise DrafterFormatError(
                f"this GGUF drafter's header lacks {self.architecture}.{keys[0]}; convert it again"
            )
        return value

    def count(self, key: str, most: int = MOST) -> int:
        """A number that may be given per layer, if they all agree."""
        value = self.need(key)
        values = value if isinstance(value, list) else [value]
        if len(set(values)) != 1 or type(values[0]) is not int or not 1 <= values[0] <= most:
            raise DrafterFormatError(f"this GGUF drafter's {key} {value} must be one number of 1 to {most}")
        return int(values[0])

    def real(self, key: str) -> float:
        """A number that was written in single precision, as it was meant."""
        return float(f"{self.need(key):.7g}")

    def flag(self, key: str) -> bool:
        """Whether `key` is there and true."""
        return bool(self.find(key))


def translate(
    header: Header, shapes: dict[str, tuple[int, ...]], *, shifted: bool, turning: int | None, gemma: bool
) -> DrafterConfig:
    """The canonical config from a header and the shapes of the tensors under canonical names.

    `shifted` says that taps are numbered from 1, `turning` how many rotary frequencies turn.
    """
    layers, width = header.count("block_count", FEW), header.count("embedding_length")
    head_dim = _shape(shapes, "layers.0.self_attn.q_norm.weight")[0]
    rank = shapes.get("markov_head.markov_w1.weight", (0, 0))[1]
    selector = _selector(header)
    predicts, undecided = _slots(header, markov=rank > 0, mainline=header.architecture == "dflash")
    vocabulary = _vocabulary(header, shapes)
    theta = header.real("rope.freq_base")
    taps = header.need("target_layers")
    convolution = None
    if selector is not None:
        convolution = ConvolutionConfig(header.count("conv_kernel_size"), header.count("conv_group_size"))
    draft = next(
        (shapes[name][0] for name in ("markov_head.markov_w2.weight", "lm_head.weight") if name in shapes), None
    )
    style: dict[str, Any] = {}
    if gemma:
        style = gemma_style(width, key_is_value="layers.0.self_attn.v_proj.weight" not in shapes)
        partial = _GEMMA_PARTIAL if turning is None else 2 * turning / head_dim
        rope = proportional(theta, partial)
    else:
        rope = RopeConfig(theta=theta, rotated=_rotated(header, head_dim), scaling=_scaling(header))
        undecided = (*undecided, "rope")
    return DrafterConfig(
        kind="dspark" if rank else "dflash",
        packaging="gguf",
        **slots(header.count("block_size", FEW), predicts),
        taps=check_taps([int(tap) - (1 if shifted else 0) for tap in taps]),
        mask_id=int(header.need("mask_token_id", "tokenizer.ggml.mask_token_id")),
        target_layers=None,
        target_hidden=_shape(shapes, "fc.weight")[1] // len(taps),
        vocabulary=vocabulary,
        draft_vocabulary=draft if draft is not None else vocabulary,
        hidden_size=width,
        heads=header.count("attention.head_count"),
        kv_heads=header.count("attention.head_count_kv"),
        head_dim=head_dim,
        intermediate_size=header.count("feed_forward_length"),
        eps=header.real("attention.layer_norm_rms_epsilon"),
        rope=rope,
        layers=_attention(header, layers),
        markov=MarkovConfig("vanilla", rank) if rank else None,
        confidence=ConfidenceConfig(with_markov=None) if "confidence_head.proj.weight" in shapes else None,
        convolution=convolution,
        selector=selector,
        attention_sinks="layers.0.self_attn.attention_sink_bias" in shapes,
        attention_bias="layers.0.self_attn.q_proj.bias" in shapes,
        output_scale=_optional(header.find("logit_scale")),
        softcap=_optional(header.find("final_logit_softcapping")),
        open=undecided,
        **style,
    )


def _slots(header: Header, *, markov: bool, mainline: bool) -> tuple[bool, tuple[Convention, ...]]:
    if not markov:
        return False, ()
    if not mainline:
        return True, ()
    said = header.find("sample_from_anchor")
    return bool(said), () if said is not None else ("layout",)


def _selector(header: Header) -> SelectorConfig | None:
    top_k = header.find("selector_top_k")
    return SelectorConfig(header.count("selector_rank"), int(top_k)) if top_k else None


def _attention(header: Header, layers: int) -> tuple[LayerConfig, ...]:
    window, causal = header.find("attention.sliding_window"), header.find("attention.causal")
    pattern = header.find("attention.sliding_window_pattern")
    if not window:
        sliding = [False] * layers
    elif isinstance(pattern, list):
        sliding = [bool(value) for value in pattern]
    else:
        sliding = [pattern is None or bool(pattern)] * layers
    if len(sliding) != layers:
        raise DrafterFormatError(
            f"this GGUF drafter's sliding_window_pattern has {len(sliding)} entries for {layers} layers; "
            "convert it again"
        )
    return tuple(
        LayerConfig(window=int(window) if slides else None, causal=slides if causal is None else bool(causal))
        for slides in sliding
    )


def _rotated(header: Header, head_dim: int) -> int | None:
    turning = header.find("rope.dimension_count")
    return None if turning is None or int(turning) == head_dim else int(turning)


def _scaling(header: Header) -> dict[str, Any] | None:
    kind = header.find("rope.scaling.type")
    if kind in (None, "none"):
        return None
    said = {
        "rope_type": kind,
        "factor": header.find("rope.scaling.factor"),
        "original_max_position_embeddings": header.find("rope.scaling.original_context_length"),
        "attention_factor": header.find("rope.scaling.attn_factor"),
    }
    return rope_scaling({key: value for key, value in said.items() if value is not None}, None, None)


def _vocabulary(header: Header, shapes: dict[str, tuple[int, ...]]) -> int | None:
    tables = ("embed_tokens.weight", "markov_head.markov_w1.weight", "candidate_selector.predecessor_codebook")
    rows = next((shapes[name][0] for name in tables if name in shapes), None)
    if rows is None and header.find("vocab_size") is not None:
        rows = header.count("vocab_size")
    return rows


def _shape(shapes: dict[str, tuple[int, ...]], name: str) -> tuple[int, ...]:
    if name not in shapes:
        raise DrafterFormatError(f"this GGUF drafter lacks the tensor for {name}; convert it again")
    return shapes[name]


def _optional(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) or value == 0 else float(value)


def _canonical(name: str, *, gemma: bool) -> str:
    base, dot, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        base, dot, kind = name, "", ""
    layer = re.fullmatch(r"blk\.(\d+)\.(.+)", base)
    if layer:
        known = (_GEMMA_LAYER_NAMES if gemma else _LAYER_NAMES).get(layer[2])
        target = None if known is None else f"layers.{layer[1]}.{known}"
    else:
        target = _NAMES.get(base)
    if target is None:
        return name  # the strict comparison with the model names it
    return target if target.endswith(_BARE) else f"{target}{dot}{kind}"


def _unpacked(stored: dict[str, mx.array]) -> dict[str, mx.array]:
    out = {}
    for name, value in stored.items():
        base = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if f"{base}.scales" in stored:
            scales, biases = (stored[f"{base}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            bits = value.shape[-1] // scales.shape[-1]
            value = mx.dequantize(value, scales, biases, group_size=_GROUP_ROWS, bits=bits)
        out[name] = value
    return out
