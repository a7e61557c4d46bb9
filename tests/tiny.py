"""Tiny seeded models in real formats: an mlx-lm llama folder, and drafters for it in every packaging."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from toys import tokenizer

from dspark.drafters.config import DrafterConfig
from dspark.drafters.model import DrafterModel

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "vocab_size": 64,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
DEEPSPEC = {
    "architectures": ["Qwen3DSparkModel"],
    "model_type": "qwen3",
    "block_size": 5,
    "mask_token_id": 61,
    "target_layer_ids": [0, 2, 4],
    "num_target_layers": 6,
    "num_hidden_layers": 2,
    "markov_rank": 4,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 64,
}


def write_llama(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """An mlx-lm folder of a random llama whose greedy answers vary."""
    config = {**LLAMA, **overrides}
    mx.random.seed(seed)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights = {name: mx.random.normal(value.shape) * 0.3 for name, value in tree_flatten(model.parameters())}
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer()._tokenizer.save_pretrained(folder)
    return folder


def head_weights(seed: int = 1, vocabulary: int = 64, draft_vocabulary: int = 64) -> dict[str, mx.array]:
    """Random tensors of a DSpark head under `DEEPSPEC`, in float32."""
    mx.random.seed(seed)
    d, ff, hd, heads, kv, taps, rank = 32, 48, 8, 4, 2, 3, 4
    shapes = {"fc.weight": (d, taps * d), "hidden_norm.weight": (d,), "norm.weight": (d,)}
    for layer in range(2):
        at = f"layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (d,),
            f"{at}.post_attention_layernorm.weight": (d,),
            f"{at}.self_attn.q_proj.weight": (heads * hd, d),
            f"{at}.self_attn.k_proj.weight": (kv * hd, d),
            f"{at}.self_attn.v_proj.weight": (kv * hd, d),
            f"{at}.self_attn.o_proj.weight": (d, heads * hd),
            f"{at}.self_attn.q_norm.weight": (hd,),
            f"{at}.self_attn.k_norm.weight": (hd,),
            f"{at}.mlp.gate_proj.weight": (ff, d),
            f"{at}.mlp.up_proj.weight": (ff, d),
            f"{at}.mlp.down_proj.weight": (d, ff),
        }
    shapes |= {
        "markov_head.markov_w1.weight": (vocabulary, rank),
        "markov_head.markov_w2.weight": (draft_vocabulary, rank),
        "confidence_head.proj.weight": (1, d + rank),
        "confidence_head.proj.bias": (1,),
    }
    return {name: mx.random.normal(shape) * 0.3 for name, shape in shapes.items()}


def write_head(folder: Path, config: dict[str, Any] | None = None, weights: dict[str, mx.array] | None = None) -> Path:
    """A drafter folder in DeepSpec's packaging, or with any config and tensors given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(DEEPSPEC if config is None else config))
    mx.save_safetensors(str(folder / "model.safetensors"), head_weights() if weights is None else weights)
    return folder


def speculators_config(draft_vocabulary: int = 64, **overrides: Any) -> dict[str, Any]:
    """The speculators form of `DEEPSPEC`: nested backbone, taps numbered from 1."""
    backbone = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    layer = {key: DEEPSPEC[key] for key in (*backbone, "head_dim", "rms_norm_eps", "vocab_size")}
    heads = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
    return {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": "dspark",
        "speculators_config": {"algorithm": "dspark", "proposal_methods": [{"speculative_tokens": 5}]},
        "transformer_layer_config": {**layer, "rope_parameters": {"rope_theta": 10000.0}},
        "aux_hidden_state_layer_ids": [1, 3, 5],
        "draft_vocab_size": draft_vocabulary,
        "block_size": 5,
        "mask_token_id": 61,
        "sample_from_anchor": True,
        **{key: DEEPSPEC[key] for key in heads},
        **overrides,
    }


BACKBONE = {
    key: DEEPSPEC[key]
    for key in (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "rope_theta",
        "vocab_size",
    )
}
HEADS = {
    key: DEEPSPEC[key]
    for key in ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
}


def random_weights(config: DrafterConfig, seed: int = 1) -> dict[str, mx.array]:
    """Random float32 tensors, under canonical names, of a drafter of that config for the tiny llama."""
    mx.random.seed(seed)
    shapes = {name: value.shape for name, value in tree_flatten(DrafterModel(config, 64).parameters())}
    return {name: mx.random.normal(shape) * 0.3 for name, shape in sorted(shapes.items())}


def dflash_config(**overrides: Any) -> dict[str, Any]:
    """z-lab's form of the same backbone: anchor and five masks, nothing else."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **BACKBONE,
        "num_target_layers": 6,
        "block_size": 6,
        "dflash_config": {"mask_token_id": 61, "target_layer_ids": [0, 2, 4]},
        **overrides,
    }


def nested_config(architecture: str, **overrides: Any) -> dict[str, Any]:
    """The backbone with DSpark heads, taps and mask under `dflash_config` (SpecForge, LiquidAI, Nemotron)."""
    nested = {"mask_token_id": 61, "target_layer_ids": [0, 2, 4], **overrides.pop("dflash_config", {})}
    return {"architectures": [architecture], **BACKBONE, **HEADS, "block_size": 5, "dflash_config": nested, **overrides}
