"""Drafters that cannot be run, each refused for its reason."""

import re

import mlx.core as mx
import pytest
from drafters.test_packagings import GGUF, LAYER_NAMES, gguf_name
from tiny import (
    DEEPSPEC,
    HEADS,
    dflash_config,
    head_weights,
    nested_config,
    random_weights,
    speculators_config,
    write_head,
)
from tiny import write_llama as llama_folder

from dspark.drafters.loading import load_drafter
from dspark.drafters.packaging import read, translate
from dspark.errors import CheckpointError, DrafterFormatError, PairingError, UsageError
from dspark.targets.target import Target


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return Target.load(llama_folder(tmp_path_factory.mktemp("models") / "llama"))


def dflash(**nested):
    return dflash_config(dflash_config={"mask_token_id": 61, "target_layer_ids": [0, 2, 4], **nested})


def specforge(**nested):
    return nested_config("DSparkDraftModel", dflash_config={"projector_type": "dspark", **nested})


def nemotron(**changes):
    return nested_config("Qwen3DSparkModel", dspark_bonus_anchor=True, block_size=6, **changes)


def windowed(**changes):
    return dflash_config(layer_types=["sliding_attention"] * 2, **changes)


SPARSE = {
    "speculators_model_type": "dspark",
    "transformer_layer_config": {"model_type": "qwen3", "hidden_size": 8},
    "aux_hidden_state_layer_ids": [2, 4],
    "draft_vocab_size": 4,
    "sample_from_anchor": False,
}
REFUSED = {
    "embedded drafter (M13)": (
        {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "dspark_block_size": 5},
        "inside the target checkpoint",
    ),
    "embedded mtp": ({"architectures": ["DeepseekV4ForCausalLM"], "mtp_layers": 3}, "inside the target checkpoint"),
    "DFlash with Markov, block 16": (dflash_config(block_size=16, **HEADS), "slot layout cannot be determined"),
    "domino": (specforge(projector_type="domino"), "projector_type domino is another algorithm"),
    "another projector": (dflash(projector_type="linear"), "projector_type linear"),
    "attention mode": (specforge(attention_mode="mla"), "attention_mode mla"),
    "eagle": ({**DEEPSPEC, "architectures": ["Eagle3Model"]}, "Eagle3Model is another algorithm"),
    "speculators eagle3 (M7)": (speculators_config(speculators_model_type="eagle3"), "eagle3"),
    "speculators peagle": ({**speculators_config(), "speculators_model_type": "peagle"}, "peagle"),
    "speculators mtp": (
        {**speculators_config(speculators_config={"algorithm": "mtp"}), "speculators_model_type": None},
        "mtp",
    ),
    "a sparse config lists what it lacks (M7, X9)": (SPARSE, "num_hidden_layers.*rms_norm_eps.*vocab_size"),
    "noise levels": ({**DEEPSPEC, "log_snr_conditioning": True}, "log_snr_conditioning"),
    "unknown architecture": ({**DEEPSPEC, "architectures": ["LagunaDraft"]}, "LagunaDraft"),
    "activation": ({**DEEPSPEC, "hidden_act": "relu2"}, "relu2"),
    "missing taps": (dflash_config(dflash_config={"mask_token_id": 61}), "target_layer_ids"),
    "missing mask": (dflash_config(dflash_config={"target_layer_ids": [0, 2]}), "mask_token_id"),
    "two block sizes": (dflash(block_size=8), "two values of block_size, 6 and .* 8"),
    "two tap lists": ({**dflash_config(), "target_layer_ids": [1, 3]}, "two values of target_layer_ids"),
    "a block of the anchor alone": (dflash_config(block_size=1), "block_size 1"),
    "window without width": (windowed(), "sliding_window"),
    "swa without width": (dflash(use_swa=True), "swa_window_size"),
    "layer types": (windowed(sliding_window=4, num_hidden_layers=3), "layer_types"),
    "chunked layers": (dflash_config(layer_types=["chunked_attention"] * 2), "chunked_attention"),
    "two scales": (dflash_config(logit_scale=0.5, output_multiplier=0.25), "logit_scale and output_multiplier"),
    "convolution groups": (
        {**dflash(conv_kernel_size=2, conv_group_size=5, selector_rank=4), "architectures": ["DFlash2DraftModel"]},
        "conv_group_size 5",
    ),
    "no selector": ({**dflash(), "architectures": ["DFlash2DraftModel"]}, "conv_kernel_size.*selector_rank"),
    "rotary scaling": (specforge() | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
    "yarn without its origin": (
        specforge() | {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        "original_max_position_embeddings",
    ),
    "yarn of another strength": (
        specforge()
        | {
            "rope_scaling": {
                "type": "yarn",
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "attention_factor": 3.0,
            }
        },
        "attention_factor 3",
    ),
    "two scalings": (
        specforge()
        | {
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0},
        },
        "rope_parameters and rope_scaling",
    ),
    "anchors contradict": (nemotron(sample_from_anchor=True), "sample_from_anchor and dspark_bonus_anchor"),
    "causality contradicts": (
        nemotron(dflash_query_causal=True, dflash_config={"causal": False}),
        "causal and dflash_query_causal",
    ),
    "windows contradict": (
        nemotron(
            layer_types=["sliding_attention"] * 2,
            sliding_window=4,
            dflash_config={"use_swa": True, "swa_window_size": 8},
        ),
        "sliding_window 4 contradicts",
    ),
    "tap lists contradict": (nemotron(eagle_aux_hidden_state_layer_ids=[0, 2, 4]), "eagle_aux_hidden_state_layer_ids"),
    "temperatures": ({**DEEPSPEC, "confidence_temperatures": [1.0, 1.0]}, "confidence_temperatures must be 5"),
    "part of a head": ({**DEEPSPEC, "enable_qwen35_gated_q_proj": True}, "partial_rotary_factor"),
    "gemma with experts": (
        {
            **DEEPSPEC,
            "architectures": ["Gemma4DSparkModel"],
            "global_head_dim": 8,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "rope_parameters": {"full_attention": {"rope_theta": 1e6, "partial_rotary_factor": 0.25}},
        },
        "experts",
    ),
    "gemma without its heads": (
        {
            **DEEPSPEC,
            "architectures": ["Gemma4DSparkModel"],
            "global_head_dim": 8,
            "attention_k_eq_v": True,
            "rope_parameters": {"full_attention": {"rope_theta": 1e6, "partial_rotary_factor": 0.25}},
        },
        "num_global_key_value_heads",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_is_refused_for_its_reason(case):
    fields, reason = REFUSED[case]
    with pytest.raises(DrafterFormatError, match=reason) as refusal:
        translate(fields)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        ("mtp.0.fc.weight", "inside the target checkpoint"),
        ("log_snr_embed.fc1.weight", "log_snr_conditioning"),
        ("mask_embedding", "mask embedding"),
        ("layers.0.decoder_layer.mlp.up_proj.weight", "layer structure"),
        ("layers.0.self_attn.qkv_proj.weight", "qkv_proj"),
        ("layers.0.self_attn.g_proj.weight", "g_proj"),
        ("aux_hidden_norms.0.weight", "aux_hidden_norms"),
        ("logit_head.prefix_gru.weight_ih_l0", "domino"),
        ("layers.0.mlp.up_proj.weight_packed", "NVFP4"),
        ("layers.0.mlp.up_proj.weight_scale_2", "NVFP4"),
        ("layers.0.mlp.up_proj.weight_scale_inv", "FP8"),
        ("layers.0.self_attn.attention_sink_bias", "attention_sink_bias"),
        ("candidate_selector.predecessor_codebook", "candidate_selector"),
    ],
)
def test_tensors_of_another_kind_of_drafter_are_named(target, tmp_path, tensor, reason):
    """L8, and the rest of what is known not to work here."""
    folder = write_head(tmp_path, weights={**head_weights(), tensor: mx.zeros((4, 4))})
    with pytest.raises(DrafterFormatError, match=reason) as refusal:
        load_drafter(folder, target)
    assert tensor.removeprefix("logit_head.") in str(refusal.value)


def test_gated_queries_that_the_config_does_not_mention_are_misshapen(target, tmp_path):
    weights = {**head_weights(), "layers.0.self_attn.q_proj.weight": mx.zeros((64, 32))}
    with pytest.raises(DrafterFormatError, match=r"q_proj.*\[64, 32\].*\[32, 32\]"):
        load_drafter(write_head(tmp_path, weights=weights), target)


def test_a_mask_embedding_beside_the_weights_is_not_ignored(tmp_path):
    (write_head(tmp_path) / "mask_embedding.pt").touch()
    with pytest.raises(DrafterFormatError, match=r"mask_embedding\.pt"):
        read(tmp_path)


@pytest.mark.parametrize(
    "quantization", [{"bits": 1, "group_size": 32}, {"bits": 4, "group_size": 16, "mode": "nvfp4"}]
)
def test_quantizations_that_are_not_read_are_named(target, tmp_path, quantization):
    """L8."""
    packed, scales, biases = mx.quantize(mx.random.normal((32, 96)), group_size=32, bits=8)
    weights = {**head_weights(), "fc.weight": packed, "fc.scales": scales, "fc.biases": biases}
    folder = write_head(tmp_path, {**DEEPSPEC, "quantization": quantization}, weights)
    with pytest.raises(DrafterFormatError, match=f"{quantization['bits']} bits"):
        load_drafter(folder, target)


def test_a_narrower_drafter_needs_tables_of_its_own(target, tmp_path):
    """A drafter of another width than its target's cannot share the target's tables."""
    narrow = {**DEEPSPEC, "hidden_size": 16, "target_hidden_size": 32}
    with pytest.raises(DrafterFormatError, match=r"16 wide and its target 32.*embed_tokens"):
        load_drafter(write_head(tmp_path, narrow), target)


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"hidden_size": 48, "target_hidden_size": 48}, ("48", "32")),
        ({"vocab_size": 99}, ("99", "64")),
        ({"num_target_layers": 7}, ("7", "6")),
        ({"target_layer_ids": [0, 2, 5]}, ("5",)),
        ({"mask_token_id": 64}, ("64",)),
    ],
)
def test_another_target_is_refused_before_weights_are_read(target, tmp_path, change, values):
    """L11: there are no weights here to read."""
    folder = write_head(tmp_path, {**DEEPSPEC, **change})
    (folder / "model.safetensors").unlink()
    with pytest.raises(PairingError) as refusal:
        load_drafter(folder, target)
    assert all(value in str(refusal.value) for value in values)


def test_a_mask_token_without_a_row_is_refused(target, tmp_path):
    """MLX reads past a table without an error, so a cut table must be noticed."""
    embedding = target.embedding
    whole = embedding.weight
    try:
        embedding.weight = whole[:60]
        with pytest.raises(PairingError, match="61 has no row in an embedding of 60"):
            load_drafter(write_head(tmp_path), target)
    finally:
        embedding.weight = whole


@pytest.mark.parametrize("header", [{"general.architecture": "deepseek4"}, {"general.architecture": "llama"}])
def test_a_gguf_of_another_model_is_refused(tmp_path, header):
    mx.save_gguf(str(tmp_path / "x.gguf"), {"token_embd.weight": mx.zeros((4, 32))}, header)
    with pytest.raises(DrafterFormatError, match=header["general.architecture"]):
        read(tmp_path / "x.gguf")


def test_a_gguf_names_what_its_header_lacks(tmp_path):
    mx.save_gguf(str(tmp_path / "x.gguf"), {"fc.weight": mx.zeros((4, 32))}, {"general.architecture": "dflash"})
    with pytest.raises(DrafterFormatError, match=re.escape("dflash.block_count")):
        read(tmp_path / "x.gguf")
    header = {"general.architecture": "dspark", "dspark.dspark.log_snr_conditioning": mx.array(True)}
    mx.save_gguf(str(tmp_path / "y.gguf"), {"dspark.fc.weight": mx.zeros((4, 32))}, header)
    with pytest.raises(DrafterFormatError, match="log_snr_conditioning"):
        read(tmp_path / "y.gguf")
    (tmp_path / "z.gguf").write_bytes(b"GGUF but no more")
    with pytest.raises(CheckpointError, match=re.escape("z.gguf")):
        read(tmp_path / "z.gguf")
    with pytest.raises(CheckpointError, match=re.escape("none.gguf")):
        read(tmp_path / "none.gguf")


@pytest.mark.parametrize("options", [{"bits": 7}, {"bits": 1}, {"window": -1}])
def test_options_that_mean_nothing_are_refused(target, tmp_path, options):
    with pytest.raises(UsageError, match=str(next(iter(options.values())))):
        load_drafter(write_head(tmp_path), target, **options)


@pytest.mark.parametrize(
    ("tensor", "value", "reason"),
    [
        ("fc.weight", mx.zeros((32, 96), dtype=mx.int32), "holds int32"),
        ("norm.weight", mx.zeros((32,), dtype=mx.uint8), "holds uint8"),
        ("norm.weight", mx.zeros((32,), dtype=mx.complex64), "holds complex64"),
        ("d2t", mx.zeros((64,), dtype=mx.float32), "holds float32"),
        ("lm_head.weight", mx.full((64, 32), float("nan")), "not finite"),
        ("embed_tokens.weight", mx.full((64, 32), float("inf")), "not finite"),
        ("model.fc.weight", mx.zeros((32, 96)), "twice"),
        ("fc.scales", mx.zeros((32, 3)), "no fc.biases"),
    ],
    ids=str,
)
def test_tensors_that_cannot_be_meant_are_named(target, tmp_path, tensor, value, reason):
    """Integers for weights, offsets that are no integers, holes in shared tables, two tensors of one name."""
    config = {**DEEPSPEC, "quantization": {"bits": 4, "group_size": 32}}
    folder = write_head(tmp_path, config, {**head_weights(), tensor: value})
    with pytest.raises(DrafterFormatError, match=reason) as refusal:
        load_drafter(folder, target)
    assert tensor.removeprefix("model.").split(".")[0] in str(refusal.value)


def test_one_tensor_in_two_files_is_refused(target, tmp_path):
    folder = write_head(tmp_path)
    mx.save_safetensors(str(folder / "model-extra.safetensors"), {"norm.weight": mx.ones((32,))})
    with pytest.raises(DrafterFormatError, match=r"norm\.weight, which another file"):
        load_drafter(folder, target)


@pytest.mark.parametrize("quantization", [{"bits": 4}, {"bits": 4, "group_size": "32"}, {"bits": 8, "group_size": 64}])
def test_packed_tensors_that_are_not_packed_as_the_config_says(target, tmp_path, quantization):
    packed, scales, biases = mx.quantize(mx.random.normal((32, 96)), group_size=32, bits=4)
    weights = {**head_weights(), "fc.weight": packed, "fc.scales": scales, "fc.biases": biases}
    folder = write_head(tmp_path, {**DEEPSPEC, "quantization": quantization}, weights)
    with pytest.raises(DrafterFormatError, match=r"fc\.weight") as refusal:
        load_drafter(folder, target)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "change", [lambda raw: raw[:-5000], lambda raw: raw[:100], lambda raw: b"", lambda raw: b"\xff" * 8 + raw[8:]]
)
def test_safetensors_that_are_cut_or_overwritten(target, tmp_path, change):
    folder = write_head(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_drafter(folder, target)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", mx.array(2**31 - 1)),
        ("block_count", "two"),
        ("block_size", mx.array(2.5)),
        ("rope.freq_base", "x"),
        ("target_layers", mx.array(3)),
        ("attention.head_count", mx.array([4, 2])),
    ],
    ids=str,
)
def test_a_gguf_header_that_cannot_be_meant_is_refused(tmp_path, key, value):
    header, names, canonical = GGUF["llama.cpp, dspark"]
    stored = {gguf_name(name, names, LAYER_NAMES): tensor for name, tensor in random_weights(canonical).items()}
    mx.save_gguf(str(tmp_path / "x.gguf"), stored, {**header, f"dflash.{key}": value})
    with pytest.raises(DrafterFormatError) as refusal:
        read(tmp_path / "x.gguf")
    assert "\n" not in str(refusal.value)
