"""SmolLM2-135M-Instruct from its GGUF file to a folder that mlx-lm loads.

The file stores linears as Q4_1 and the tied embedding as Q8_0, both in groups of 32, which are MLX's own affine
quantization. `q4` keeps those groups, `bf16` and `fp32` expand them: all three hold the same numbers, so one drafter
serves them all.
"""

import errno
import json
from pathlib import Path
from typing import Any, Literal

Precision = Literal["fp32", "bf16", "q4"]

WEIGHTS, CONFIG, GENERATION = "model.safetensors", "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
FILES = (WEIGHTS, CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG)

_GROUP = 32
_LINEAR_BITS, _EMBEDDING_BITS = 4, 8
_CONTROL_TOKEN = 3  # GGUF's token type of <|im_start|> and its like
_EMBEDDING = "model.embed_tokens"
_OUTER = {"token_embd": _EMBEDDING, "output_norm": "model.norm"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SPECIAL_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def convert(gguf: Path, folder: Path, precision: Precision) -> None:
    """Write config, weights and tokenizer (`FILES`) into the existing `folder`; raises `OSError` if that fails."""
    import mlx.core as mx

    loaded: Any = mx.load(str(gguf), return_metadata=True)
    stored, metadata = loaded
    config = _config(metadata)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for key, value in stored.items():
        name, part = _mlx_name(key)
        tensors[name] = _half_split(value, heads[part]) if part in heads else value
    if precision == "q4":
        embedding = {_EMBEDDING: {"group_size": _GROUP, "bits": _EMBEDDING_BITS}}
        config["quantization"] = {"group_size": _GROUP, "bits": _LINEAR_BITS, **embedding}
        config["quantization_config"] = config["quantization"]
    else:
        tensors = _expanded(tensors, {"fp32": mx.float32, "bf16": mx.bfloat16}[precision])
    try:
        mx.save_safetensors(str(folder / WEIGHTS), tensors, metadata={"format": "mlx"})
    except RuntimeError as error:  # how MLX reports a disk that fills up
        raise OSError(errno.EIO, str(error)) from error
    _write_json(folder / CONFIG, config)
    _write_json(folder / GENERATION, _SPECIAL_IDS)
    _write_tokenizer(folder, metadata)


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    def number(key: str) -> Any:
        return metadata[f"llama.{key}"].item()

    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("embedding_length") // number("attention.head_count"),
        "rms_norm_eps": 1e-5,  # the file holds the nearest float32
        "rope_theta": number("rope.freq_base"),
        "max_position_embeddings": number("context_length"),
        "vocab_size": number("vocab_size"),
        "tie_word_embeddings": True,
        **_SPECIAL_IDS,
    }


def _mlx_name(key: str) -> tuple[str, str]:
    """`blk.3.attn_q.weight` → (`model.layers.3.self_attn.q_proj.weight`, `attn_q`)."""
    stem, _, kind = key.rpartition(".")
    if not stem.startswith("blk."):
        return f"{_OUTER[stem]}.{kind}", stem
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_INNER[part]}.{kind}", part


def _half_split(rows: Any, heads: int) -> Any:
    """Reorder Q or K rows from GGUF's interleaved rotary pairs to halves; scales and biases follow their rows."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _expanded(tensors: dict[str, Any], dtype: Any) -> dict[str, Any]:
    import mlx.core as mx

    expanded = {}
    for name, value in tensors.items():
        stem, _, kind = name.rpartition(".")
        if kind in ("scales", "biases"):
            continue
        if (scales := tensors.get(f"{stem}.scales")) is not None:
            bits = _EMBEDDING_BITS if stem == _EMBEDDING else _LINEAR_BITS
            value = mx.dequantize(value, scales, tensors[f"{stem}.biases"], group_size=_GROUP, bits=bits)
        expanded[name] = value.astype(dtype)
    return expanded


def _write_tokenizer(folder: Path, metadata: dict[str, Any]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"].tolist()
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [word for word, type_ in zip(words, types, strict=True) if type_ == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in control])
    tokenizer.save(str(folder / TOKENIZER))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }
    _write_json(folder / TOKENIZER_CONFIG, settings)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1), encoding="utf-8")
