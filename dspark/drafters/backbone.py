"""The Qwen3-style bidirectional backbone that DSpark and DFlash drafters share (drafter specification 1.2 to 1.5)."""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.cache import KVCache

from dspark.drafters.config import DrafterConfig


class Attention(nn.Module):
    """Block rows attend, without a mask, to every context row and to the whole block."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5
        self.q_proj = nn.Linear(config.hidden_size, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, config.eps)
        self.k_norm = nn.RMSNorm(config.head_dim, config.eps)
        self.rope = nn.RoPE(config.head_dim, traditional=False, base=config.rope_theta)

    def _split(self, rows: mx.array, heads: int) -> mx.array:
        return rows.reshape(rows.shape[0], rows.shape[1], heads, self.head_dim)

    def remember(self, rows: mx.array, cache: KVCache) -> tuple[mx.array, mx.array]:
        """Project `rows` [1, n, d] to keys and values at the cache's next positions; returns all of them."""
        keys = self.k_norm(self._split(self.k_proj(rows), self.kv_heads)).transpose(0, 2, 1, 3)
        values = self._split(self.v_proj(rows), self.kv_heads).transpose(0, 2, 1, 3)
        keys, values = cache.update_and_fetch(self.rope(keys, offset=cache.offset), values)
        return keys, values

    def __call__(self, block: mx.array, context: mx.array | None, cache: KVCache) -> mx.array:
        """Attend with `block` [1, γ, d] after adding `context` rows [1, n, d]; leaves the cache γ rows too long."""
        # Context and block rows take consecutive positions and the same projections: one product for both.
        rows = block if context is None else mx.concatenate([context, block], axis=1)
        keys, values = self.remember(rows, cache)
        queries = self.q_norm(self._split(self.q_proj(block), self.heads)).transpose(0, 2, 1, 3)
        queries = self.rope(queries, offset=cache.offset - block.shape[1])
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.scale)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(1, block.shape[1], -1))


class MLP(nn.Module):
    """Gated feed-forward."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Layer(nn.Module):
    """One decoder layer. Context rows skip the input norm; block rows pass it."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.eps)

    def __call__(self, block: mx.array, context: mx.array | None, cache: KVCache) -> mx.array:
        block = block + self.self_attn(self.input_layernorm(block), context, cache)
        return block + self.mlp(self.post_attention_layernorm(block))


class Backbone(nn.Module):
    """fc and hidden_norm turn tapped rows into context features; the layers turn a masked block into hidden rows."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(len(config.taps) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.eps)
        self.layers = [Layer(config) for _ in range(config.layers)]
        self.norm = nn.RMSNorm(config.hidden_size, config.eps)

    def features(self, taps: mx.array) -> mx.array:
        """Context features [1, n, d] of tapped rows [1, n, m·d]."""
        return self.hidden_norm(self.fc(taps))

    def absorb(self, context: mx.array, caches: list[KVCache]) -> None:
        """Add context features to every layer's cache without drafting."""
        for layer, cache in zip(self.layers, caches, strict=True):
            layer.self_attn.remember(context, cache)

    def __call__(self, block: mx.array, context: mx.array | None, caches: list[KVCache]) -> mx.array:
        """Hidden rows [1, γ, d] of an embedded block, before the final norm; block keys and values are not kept."""
        for layer, cache in zip(self.layers, caches, strict=True):
            block = layer(block, context, cache)
            cache.trim(block.shape[1])
        return block
