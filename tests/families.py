"""Tiny seeded models of many families, built through mlx-lm's own classes, one list for each kind of cache."""

import importlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from toys import tokenizer

from dspark.targets.caches import KVBits
from dspark.targets.target import Target

WINDOW = 8
CONV = 4

COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": WINDOW,
}
MLA = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
MOE = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
}
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": CONV,
    "full_attention_interval": 3,
}
KDA = {"num_heads": 4, "head_dim": 8, "short_conv_kernel_size": CONV}
MAMBA2 = {"ssm_state_size": 8, "conv_kernel": CONV, "n_groups": 2, "use_bias": False, "use_conv_bias": True}
LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]

# Model type → what its tiny config adds to COMMON.
FAMILIES: dict[str, dict[str, Any]] = {
    # keys and values of every position
    "llama": {},
    "qwen3": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {**MLA, **MOE},
    "deepseek_v32": {**MLA, **MOE, "index_head_dim": 8, "index_n_heads": 2, "index_topk": 6},
    "minicpm3": {
        **MLA,
        "rope_scaling": {"original_max_position_embeddings": 512},
        "dim_model_base": 32,
        "scale_depth": 1.4,
        "scale_emb": 2,
    },
    "afm7": {"hidden_dim": 32, "num_layers": 3, "num_kv_reuse_layers": 1, "num_heads": 4, "num_kv_heads": 2},
    "nanbeige": {"num_loops": 2},
    # rings, alone or beside full attention
    "gemma3_text": {"num_hidden_layers": 4, "sliding_window_pattern": 3, "query_pre_attn_scalar": 8},
    "gemma4_text": {
        "num_hidden_layers": 6,
        "sliding_window_pattern": 3,
        "global_head_dim": 16,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 64,
        "tie_word_embeddings": True,
    },
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "layer_types": LAYERS},
    "cohere2": {"head_dim": 8, "sliding_window_pattern": 3, "logit_scale": 1.0, "layer_norm_eps": 1e-5},
    "olmo3": {"layer_types": LAYERS},
    "iquestloopcoder": {"loop_window_size": WINDOW, "loop_num": 2},
    # chunks
    "llama4": {
        "text_config": {
            **COMMON,
            "model_type": "llama4_text",
            "num_hidden_layers": 4,
            "attention_chunk_size": WINDOW,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 48,
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "rope_scaling": None,
            "use_qk_norm": True,
        }
    },
    # gated delta
    "qwen3_5": DELTA,
    "qwen3_5_moe": {**DELTA, **MOE, "shared_expert_intermediate_size": 16},
    "qwen3_next": {
        **DELTA,
        **MOE,
        "decoder_sparse_step": 2,
        "shared_expert_intermediate_size": 16,
        "mlp_only_layers": [],
        "partial_rotary_factor": 0.5,
    },
    "kimi_linear": {
        **MLA,
        **MOE,
        "linear_attn_config": {**KDA, "kda_layers": [1, 2], "full_attn_layers": [3]},
        "model_max_length": 512,
        "num_experts_per_token": 2,
    },
    "kimi_k3": {
        **MLA,
        **MOE,
        "linear_attn_config": {**KDA, "kda_layers": [1, 2], "full_attn_layers": [3]},
        "num_experts_per_token": 2,
        "num_key_value_heads": 4,
    },
    "bailing_moe_v3": {
        **MLA,
        **MOE,
        "num_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 16,
        "layer_group_size": 3,
        "short_conv_kernel_size": CONV,
    },
    "olmo_hybrid": {
        **DELTA,
        "linear_allow_neg_eigval": True,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    # Mamba-2
    "nemotron_h": {
        **MAMBA2,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "mamba_proj_bias": False,
        "layer_norm_epsilon": 1e-5,
        "hybrid_override_pattern": ["M", "*", "-", "M"],
    },
    "mamba2": {
        **MAMBA2,
        "num_heads": 8,
        "state_size": 8,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": (0.001, 100.0),
        "time_step_rank": 4,
        "intermediate_size": 64,
    },
    "granitemoehybrid": {
        "embedding_multiplier": 2.0,
        "attention_multiplier": 0.3,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "layer_types": ["mamba", "attention", "mamba"],
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_proj_bias": False,
        "mamba_d_state": 8,
        "mamba_d_conv": CONV,
        "mamba_n_groups": 1,
        "mamba_conv_bias": True,
        "shared_intermediate_size": 48,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "falcon_h1": {
        "mamba_d_conv": CONV,
        "mamba_d_head": 8,
        "mamba_d_ssm": 32,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "mamba_n_heads": 4,
        "lm_head_multiplier": 1.0,
        "rope_theta": 10000.0,
    },
    "plamo2": {
        "hidden_size_per_head": 8,
        "mamba_d_state": 8,
        "mamba_d_conv": CONV,
        "mamba_num_heads": 4,
        "mamba_step": 2,
        "num_hidden_layers": 4,
        "tie_word_embeddings": True,
    },
    # short convolutions
    "lfm2": {
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "lfm2_moe": {
        **MOE,
        "use_expert_bias": False,
        "num_dense_layers": 1,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    # recurrent state of other kinds
    "mamba": {
        "state_size": 8,
        "conv_kernel": CONV,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
        "intermediate_size": 64,
        "tie_word_embeddings": True,
    },
    "jamba": {
        **MOE,
        "attn_layer_offset": 1,
        "attn_layer_period": 3,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": CONV,
        "mamba_d_state": 8,
        "mamba_expand": 2,
    },
    "rwkv7": {
        "norm_eps": 1e-5,
        "a_low_rank_dim": 8,
        "v_low_rank_dim": 8,
        "gate_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
    },
    "recurrent_gemma": {
        "conv1d_width": CONV,
        "logits_soft_cap": 30.0,
        "attention_window_size": WINDOW,
        "block_types": ["recurrent", "attention", "recurrent"],
        "tie_word_embeddings": True,
    },
    "baichuan_m1": {"sliding_window_layers": [0, 2], "conv_window": 2},
    "gear": {"layer_types": ["conv_mixer", "sliding_attention", "full_attention"], "tie_word_embeddings": True},
    "bailing_hybrid": {
        **MLA,
        **MOE,
        "num_shared_experts": 1,
        "layer_group_size": 3,
        "group_norm_size": 2,
        "num_key_value_heads": 4,
    },
    "longcat_flash_ngram": {
        **MLA,
        "ffn_hidden_size": 48,
        "moe_topk": 2,
        "expert_ffn_hidden_size": 16,
        "n_routed_experts": 4,
        "zero_expert_num": 1,
        "num_layers": 2,
        "routed_scaling_factor": 1.0,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "emb_neighbor_num": 3,
        "emb_split_num": 2,
    },
    "deepseek_v41": {
        **MOE,
        "num_hidden_layers": 2,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "head_dim": 16,
        "o_groups": 2,
        "o_lora_rank": 8,
        "compress_ratios": (1, 4),
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 4,
        "hc_mult": 2,
    },
}
QUANTIZED = {"llama": 4, "gemma3_text": 8}


@cache
def family(name: str, kv_bits: int | None = None) -> Target:
    """A target of random float32 weights, large enough that the two best tokens rarely come close."""
    overrides = dict(FAMILIES[name])
    if kv_bits is not None:
        overrides["head_dim"] = 32
    config = {**COMMON, **overrides, "model_type": name}
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(sum(name.encode()))
    model = module.Model(module.ModelArgs.from_dict(config))
    embedding = _SMALL_EMBEDDINGS.get(name, 0.3)
    model.update(
        tree_unflatten([(path, _weight(path, value, embedding)) for path, value in tree_flatten(model.parameters())])
    )
    model.eval()
    mx.eval(model.parameters())
    return Target(
        model,
        tokenizer(),
        {key: value for key, value in config.items() if key not in _RENAMED.get(name, ())},
        Path(name),
        kv_bits=KVBits(kv_bits) if kv_bits else None,
    )


# What these configs call by another name, and so do not have.
_RENAMED = {"afm7": ("hidden_size",)}


def write_family(folder: Path, name: str) -> Path:
    """The same model as an mlx-lm folder."""
    known = family(name)
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(known.model.parameters())))
    (folder / "config.json").write_text(json.dumps({**known.config, "eos_token_id": 2}))
    tokenizer()._tokenizer.save_pretrained(folder)
    return folder


_EMBEDDINGS = ("embed_tokens.weight", "embedding.weight", "embeddings.weight", "embed_in.weight")
# Where the residual stream stays close to the token's own embedding, a tied head would say it again and again.
_SMALL_EMBEDDINGS = {"plamo2": 0.02, "gemma4_text": 0.05}


def _weight(path: str, value: mx.array, embedding: float) -> mx.array:
    if value.ndim < 2 or not mx.issubdtype(value.dtype, mx.floating):
        return value  # norms, biases, decays and time steps as the family sets them
    fan_in = value.shape[-1] if "conv" not in path else value.shape[1]
    return mx.random.normal(value.shape) * (embedding if path.endswith(_EMBEDDINGS) else 1.6 / fan_in**0.5)
