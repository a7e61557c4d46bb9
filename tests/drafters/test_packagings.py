"""One head in every packaging: read from its files, it is the canonical drafter, to the last row and logit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from drafters.gguf_file import write_q8
from tiny import (
    DEEPSPEC,
    HEADS,
    dflash_config,
    nested_config,
    random_weights,
    speculators_config,
    write_head,
    write_llama,
)

from dspark.drafters.config import (
    ConfidenceConfig,
    ConvolutionConfig,
    DrafterConfig,
    LayerConfig,
    MarkovConfig,
    RopeConfig,
    SelectorConfig,
)
from dspark.drafters.gemma import gemma_style, proportional
from dspark.drafters.loading import bind, load_drafter
from dspark.drafters.packaging import Checkpoint, read, translate
from dspark.errors import DrafterFormatError
from dspark.targets.target import Target

# Written out, not translated: what every packaging below must come to.
CANONICAL = DrafterConfig(
    kind="dspark",
    packaging="",
    block=5,
    layout="next",
    taps=(0, 2, 4),
    mask_id=61,
    target_layers=6,
    target_hidden=32,
    vocabulary=64,
    draft_vocabulary=64,
    hidden_size=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    eps=1e-5,
    rope=RopeConfig(10000.0),
    layers=(LayerConfig(), LayerConfig()),
    markov=MarkovConfig("vanilla", 4),
    confidence=ConfidenceConfig(True),
)
DFLASH = replace(CANONICAL, kind="dflash", layout="same", markov=None, confidence=None)
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 16, "beta_fast": 4.0}
NOISE = {
    "partial_rotary_factor": 0.25,
    "mrope_section": [1, 2, 3],
    "layer_types": ["sliding_attention", "sliding_attention"],
    "sliding_window": 4,
    "use_sliding_window": True,
    "attn_output_gate": True,
    "linear_num_value_heads": 2,
    "rope_scaling": YARN,
    "num_anchors": 512,
}
GEMMA = {
    "architectures": ["Gemma4DSparkModel"],
    "target_model_type": "gemma4",
    **{key: value for key, value in DEEPSPEC.items() if key not in ("architectures", "head_dim", "rope_theta")},
    "head_dim": 4,
    "global_head_dim": 8,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "final_logit_softcapping": 2.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
NEMOTRON = nested_config(
    "Qwen3DSparkModel",
    block_size=6,
    layer_types=["sliding_attention"] * 2,
    sliding_window=7,
    dspark_bonus_anchor=True,
    dflash_query_causal=True,
    attention_sink_bias=True,
    eagle_aux_hidden_state_layer_ids=[1, 3, 5],
    dflash_config={
        "causal": True,
        "swa_window_size": 7,
        "use_swa": True,
        "sample_from_anchor": False,
        "attention_sink_bias": True,
    },
)
SECOND = {
    "block_size": 6,
    "conv_kernel_size": 2,
    "conv_group_size": 8,
    "selector_rank": 4,
    "selector_top_k": 6,
    "input_embedding_scale": 1.5,
    "output_multiplier": 0.25,
    "final_logit_softcapping": 3.0,
    "mask_token_id": 61,
    "target_layer_ids": [0, 2, 4],
}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def unnamed(config: DrafterConfig) -> DrafterConfig:
    """Without what describes the packaging and not the drafter."""
    return replace(config, packaging="", open=(), verifier=None)


PACKAGINGS: dict[str, tuple[dict[str, Any], DrafterConfig]] = {
    "deepspec": (DEEPSPEC, CANONICAL),
    "deepspec with noise from its target (M5)": ({**DEEPSPEC, **NOISE}, CANONICAL),
    "deepspec with nested flags (M8)": ({**without(DEEPSPEC, *HEADS), "dspark_config": HEADS}, CANONICAL),
    "deepspec, gated": ({**DEEPSPEC, "markov_head_type": "gated"}, replace(CANONICAL, markov=MarkovConfig("gated", 4))),
    "deepspec, rnn": ({**DEEPSPEC, "markov_head_type": "rnn"}, replace(CANONICAL, markov=MarkovConfig("rnn", 4))),
    "deepspec without heads": (
        {**DEEPSPEC, "markov_rank": 0, "enable_confidence_head": False},
        replace(CANONICAL, markov=None, confidence=None),
    ),
    "qwen 3.5 fork": (
        {
            **DEEPSPEC,
            "architectures": ["Qwen35DSparkModel"],
            "enable_qwen35_gated_q_proj": True,
            "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1],
            "confidence_temperatures": [1.5, 0.9, 1.5, 1.6, 0.9],
        },
        replace(
            CANONICAL,
            gated_query=True,
            norm_offset=True,
            rope=RopeConfig(10000.0, rotated=4),
            confidence=ConfidenceConfig(True, (1.5, 0.9, 1.5, 1.6, 0.9)),
        ),
    ),
    "gemma 4": (
        GEMMA,
        replace(CANONICAL, softcap=2.0, rope=proportional(1e6, 0.5), **gemma_style(32, key_is_value=True)),
    ),
    "gemma 4 with values": (
        {**GEMMA, "attention_k_eq_v": False},
        replace(CANONICAL, softcap=2.0, kv_heads=4, rope=proportional(1e6, 0.5), **gemma_style(32, key_is_value=False)),
    ),
    "nemotron": (
        NEMOTRON,
        replace(
            CANONICAL,
            layout="same",
            target_layers=None,
            layers=(LayerConfig(window=7, causal=True),) * 2,
            attention_sinks=True,
        ),
    ),
    "liquid": (
        nested_config("Lfm2DSparkDraftModel", rope_is_neox_style=False, dflash_config={"num_target_layers": 6}),
        replace(CANONICAL, rope=RopeConfig(10000.0, traditional=True)),
    ),
    "specforge": (
        without(nested_config("DSparkDraftModel", dflash_config={"projector_type": "dspark", **HEADS}), *HEADS),
        replace(CANONICAL, target_layers=None),
    ),
    "specforge with yarn": (
        nested_config(
            "DSparkDraftModel",
            rope_parameters={**YARN, "rope_theta": 10000.0},
            dflash_config={"projector_type": "dspark", "attention_mode": "gqa"},
        ),
        replace(
            CANONICAL,
            target_layers=None,
            rope=RopeConfig(10000.0, scaling={**YARN, "max_position_embeddings": None}),
        ),
    ),
    "z-lab": (dflash_config(), DFLASH),
    "z-lab, block in the nested group (X9)": (
        {
            **without(dflash_config(), "block_size"),
            "dflash_config": {"block_size": 6, "mask_token_id": 61, "target_layer_ids": [0, 2, 4]},
        },
        DFLASH,
    ),
    "z-lab with windows": (
        dflash_config(layer_types=["sliding_attention", "full_attention"], sliding_window=7),
        replace(DFLASH, layers=(LayerConfig(window=7, causal=True), LayerConfig())),
    ),
    "z-lab with windows, not causal": (
        dflash_config(layer_types=["sliding_attention", "full_attention"], sliding_window=7, is_causal=False),
        replace(DFLASH, layers=(LayerConfig(window=7), LayerConfig())),
    ),
    "z-lab with windows switched off": (
        dflash_config(layer_types=["sliding_attention"] * 2, sliding_window=7, use_sliding_window=False),
        DFLASH,
    ),
    "z-lab with a window of the fork's kind": (
        dflash_config(
            dflash_config={
                "mask_token_id": 61,
                "target_layer_ids": [0, 2, 4],
                "use_swa": True,
                "swa_window_size": 7,
                "attention_sink_bias": True,
            }
        ),
        replace(DFLASH, layers=(LayerConfig(window=7),) * 2, attention_sinks=True),
    ),
    "z-lab label on a head with Markov": (
        dflash_config(block_size=5, **HEADS),
        CANONICAL,
    ),
    "dflash 2": (
        {
            **without(dflash_config(is_causal=False), "block_size", "dflash_config"),
            "architectures": ["DFlash2DraftModel"],
            "layer_types": ["sliding_attention"] * 2,
            "sliding_window": 7,
            "dflash_config": SECOND,
        },
        replace(
            DFLASH,
            layers=(LayerConfig(window=7),) * 2,
            convolution=ConvolutionConfig(2, 8),
            selector=SelectorConfig(4, 6),
            embedding_scale=1.5,
            output_scale=0.25,
            softcap=3.0,
        ),
    ),
    "speculators": (speculators_config(), replace(CANONICAL, target_layers=None)),
    "speculators, anchor unused (M1)": (
        speculators_config(
            block_size=6, sample_from_anchor=False, speculators_config={"algorithm": "dspark"}, architectures=["X"]
        ),
        replace(CANONICAL, target_layers=None, layout="same"),
    ),
    "speculators, tokens at the top (X9)": (
        {**without(speculators_config(), "speculators_config", "sample_from_anchor"), "speculative_tokens": 5},
        replace(CANONICAL, target_layers=None),
    ),
    "speculators with causal windows": (
        speculators_config(
            transformer_layer_config={
                **speculators_config()["transformer_layer_config"],
                "layer_types": ["sliding_attention", "full_attention"],
                "sliding_window": 7,
            }
        ),
        replace(
            CANONICAL, target_layers=None, layers=(LayerConfig(window=7, causal=True, per_row=False), LayerConfig())
        ),
    ),
    "speculators of the dflash algorithm": (
        {
            **speculators_config(block_size=6, sample_from_anchor=False, markov_rank=0, enable_confidence_head=False),
            "speculators_model_type": "dflash",
        },
        replace(DFLASH, target_layers=None),
    ),
}
# How some writers name what others name otherwise.
RENAMED = {
    "nemotron": lambda name: f"model.{name}",
    "specforge": lambda name: f"logit_head.{name}" if name.startswith(("markov", "confidence")) else name,
    "dflash 2": lambda name: f"{name}.weight" if name.endswith(("codebook", "base_kernel")) else name,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return Target.load(write_llama(tmp_path_factory.mktemp("models") / "llama"))


def rows_and_logits(drafter, target, length=30):
    target.tap(drafter.taps)
    _, rows = target.forward(mx.array([[3 + (7 * i) % 50 for i in range(length)]]), target.new_cache())
    context = drafter.new_context()
    context.append(rows)
    hidden = drafter.hidden(context, mx.array([9]))[0]
    return hidden, drafter.step_logits(hidden, mx.array([9])), drafter.propose(hidden, mx.array([9]))


def assert_alike(one, other, target):
    (hidden, logits, draft), (theirs, their_logits, their_draft) = (rows_and_logits(d, target) for d in (one, other))
    assert hidden.shape == (5, 32) and mx.array_equal(hidden, theirs).item()
    assert mx.array_equal(logits, their_logits).item()
    assert draft.tokens.tolist() == their_draft.tokens.tolist()
    assert (draft.confidence is None) == (their_draft.confidence is None)
    if draft.confidence is not None:
        assert draft.confidence.tolist() == their_draft.confidence.tolist()


@pytest.mark.parametrize("packaging", PACKAGINGS)
def test_a_packaging_is_its_canonical_drafter(target, tmp_path, packaging):
    """M1, M2, M5, M7, M8, X9."""
    fields, canonical = PACKAGINGS[packaging]
    assert_same_config(translate(fields), canonical)
    weights = random_weights(canonical)
    renamed = RENAMED.get(packaging, lambda name: name)
    folder = write_head(tmp_path / "head", fields, {renamed(name): value for name, value in weights.items()})
    assert_alike(load_drafter(folder, target), bind(Checkpoint(canonical, lambda: dict(weights)), target), target)


def assert_same_config(ours: DrafterConfig, canonical: DrafterConfig) -> None:
    if ours.confidence is not None and ours.confidence.with_markov is None:
        ours = replace(ours, confidence=replace(ours.confidence, with_markov=True))
    scaling = canonical.rope.scaling
    if scaling is not None and "max_position_embeddings" in scaling and ours.rope.scaling is not None:
        ours = replace(ours, rope=replace(ours.rope, scaling={**ours.rope.scaling, "max_position_embeddings": None}))
    assert unnamed(ours) == canonical


@pytest.mark.parametrize(
    ("fields", "convention"),
    [
        (speculators_config(), ("taps",)),
        (without(speculators_config(speculators_config={}), "sample_from_anchor"), ("taps", "layout")),
        (dflash_config(block_size=5, **HEADS), ("layout",)),
        (nested_config("Lfm2DSparkDraftModel"), ("rope",)),
        (DEEPSPEC, ()),
        (dflash_config(), ()),
        (NEMOTRON, ()),
    ],
)
def test_what_a_packaging_leaves_open_is_said(fields, convention):
    assert translate(fields).open == convention


# GGUF


def gguf_header(arch: str, double: bool = False, **more: Any) -> dict[str, Any]:
    own = f"{arch}.{arch}" if double else arch
    return {
        "general.architecture": arch,
        f"{arch}.embedding_length": mx.array(32),
        f"{arch}.block_count": mx.array(2),
        f"{arch}.feed_forward_length": mx.array(48),
        f"{arch}.attention.head_count": mx.array(4),
        f"{arch}.attention.head_count_kv": mx.array(2),
        f"{arch}.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        f"{arch}.rope.freq_base": mx.array(10000.0),
        f"{own}.block_size": mx.array(5),
        f"{own}.target_layers": mx.array([0, 2, 4] if double else [1, 3, 5]),
        **({f"{own}.mask_token_id": mx.array(61)} if double else {"tokenizer.ggml.mask_token_id": mx.array(61)}),
        **{f"{own}.{key.replace('__', '.')}": mx.array(value) for key, value in more.items()},
    }


LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{name}_proj": f"attn_{name}" for name in ("q", "k", "v")},
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.attention_sink_bias": "attn_sinks",
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
    "attention_conv.kernel_projection": "attn_conv_proj",
    "attention_conv.base_kernel": "attn_conv_base",
    "mlp_conv.kernel_projection": "ffn_conv_proj",
    "mlp_conv.base_kernel": "ffn_conv_base",
}
GEMMA_LAYER_NAMES = {
    **LAYER_NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "layer_scalar": "layer_output_scale",
}
PRISM = {
    "fc": "dspark.fc",
    "hidden_norm": "dspark.hidden_norm",
    "norm": "output_norm",
    "markov_head.markov_w1": "dspark.markov_head_a",
    "markov_head.markov_w2": "dspark.markov_head_b",
    "confidence_head.proj": "dspark.confidence_head",
    "embed_tokens": "token_embd",
    "lm_head": "output",
}
FORK = {
    "fc": "fc",
    "hidden_norm": "enc.output_norm",
    "norm": "output_norm",
    "markov_head.markov_w1": "markov.w1",
    "markov_head.markov_w2": "markov.w2",
    "confidence_head.proj": "confidence.proj",
}
MAINLINE = {
    "fc": "fc",
    "hidden_norm": "enc.output_norm",
    "norm": "output_norm",
    "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2",
    "confidence_head.proj": "conf_proj",
    "candidate_selector.hidden_projection": "selector_hidden",
    "candidate_selector.predecessor_codebook": "selector_predecessor",
    "candidate_selector.successor_codebook": "selector_successor",
}


def gguf_name(name: str, names: dict[str, str], layer_names: dict[str, str]) -> str:
    base, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        base, kind = name, "weight"
    if base.startswith("layers."):
        _, index, part = base.split(".", 2)
        return f"blk.{index}.{layer_names[part]}.{kind}"
    return f"{names[base]}.{kind}"


def tables() -> dict[str, mx.array]:
    mx.random.seed(8)
    return {"embed_tokens.weight": mx.random.normal((64, 32)), "lm_head.weight": mx.random.normal((64, 32))}


GGUF = {
    "prism": (gguf_header("dspark", double=True, markov_rank=4), PRISM, CANONICAL),
    "llama.cpp, gemma fork": (
        gguf_header("dspark", final_logit_softcapping=2.0),
        FORK,
        replace(CANONICAL, softcap=2.0, rope=proportional(10000.0, 0.5), **gemma_style(32, key_is_value=True)),
    ),
    "llama.cpp, dspark": (gguf_header("dflash", sample_from_anchor=True), MAINLINE, CANONICAL),
    "llama.cpp, dspark, anchor unused": (
        {**gguf_header("dflash", sample_from_anchor=False), "dflash.block_size": mx.array(6)},
        MAINLINE,
        replace(CANONICAL, layout="same"),
    ),
    "llama.cpp, dflash": (
        {
            **gguf_header("dflash", attention__causal=False, attention__sliding_window=7),
            "dflash.attention.sliding_window_pattern": mx.array([True, False]),
            "dflash.block_size": mx.array(6),
        },
        MAINLINE,
        replace(DFLASH, layers=(LayerConfig(window=7), LayerConfig())),
    ),
    "llama.cpp, dflash 2": (
        {
            **gguf_header("dflash", selector_top_k=6, selector_rank=4, conv_kernel_size=2, conv_group_size=8),
            "dflash.logit_scale": mx.array(0.25),
            "dflash.block_size": mx.array(6),
        },
        MAINLINE,
        replace(DFLASH, convolution=ConvolutionConfig(2, 8), selector=SelectorConfig(4, 6), output_scale=0.25),
    ),
}


def write_gguf(file: Path, packaging: str) -> dict[str, mx.array]:
    """Write a drafter as GGUF; returns its tensors under canonical names."""
    header, names, canonical = GGUF[packaging]
    weights = {**random_weights(canonical), **(tables() if packaging == "prism" else {})}
    layer_names = GEMMA_LAYER_NAMES if canonical.sandwich_norms else LAYER_NAMES
    stored = {gguf_name(name, names, layer_names): value for name, value in weights.items()}
    if canonical.sandwich_norms:
        stored["rope_freqs.weight"] = mx.array([1.0, 1.0, 1e30, 1e30])
    mx.save_gguf(str(file), stored, header)
    return weights


@pytest.mark.parametrize("packaging", GGUF)
def test_a_gguf_is_its_canonical_drafter(target, tmp_path, packaging):
    """M2: three writers number taps in two ways."""
    weights = write_gguf(tmp_path / "drafter.gguf", packaging)
    canonical = GGUF[packaging][2]
    ours = read(tmp_path / "drafter.gguf").config
    assert_same_config(replace(ours, target_layers=6, vocabulary=64, draft_vocabulary=64), canonical)
    theirs = bind(Checkpoint(canonical, lambda: dict(weights)), target)
    assert_alike(load_drafter(tmp_path / "drafter.gguf", target), theirs, target)
    assert_alike(load_drafter(tmp_path, target), theirs, target)


def test_a_gguf_of_packed_blocks_is_unpacked(target, tmp_path):
    header, names, canonical = GGUF["llama.cpp, dspark"]
    weights = random_weights(canonical)
    stored = {gguf_name(name, names, LAYER_NAMES): value for name, value in weights.items()}
    held = write_q8(tmp_path / "drafter.gguf", stored, header)
    rounded = {name: held[gguf_name(name, names, LAYER_NAMES)] for name in weights}
    ours, theirs = load_drafter(tmp_path / "drafter.gguf", target), bind(Checkpoint(canonical, lambda: rounded), target)
    (hidden, *_), (expected, *_) = rows_and_logits(ours, target), rows_and_logits(theirs, target)
    assert mx.allclose(hidden, expected, atol=1e-4).item()
    plain = bind(Checkpoint(canonical, lambda: weights), target)
    assert not mx.allclose(hidden, rows_and_logits(plain, target)[0], atol=1e-3).item()


def test_the_head_of_a_gguf_may_turn_either_way(tmp_path):
    write_gguf(tmp_path / "a.gguf", "llama.cpp, dflash")
    assert read(tmp_path / "a.gguf").config.open == ("rope",)


def test_a_folder_of_two_gguf_files_asks_which(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(DrafterFormatError, match="2"):
        read(tmp_path)
