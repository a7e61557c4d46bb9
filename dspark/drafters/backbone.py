"""The backbone that DSpark and DFlash drafters share (drafter specification 1.2 to 1.5, 1.14)."""

from typing import Literal

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.rope_utils import initialize_rope

from dspark.drafters.config import DrafterConfig, LayerConfig, RopeConfig
from dspark.drafters.convolution import DynamicConvolution
from dspark.drafters.keyvalues import KeyValues

Mask = mx.array | Literal["causal"] | None


def sight(layer: LayerConfig, anchor: int, count: int) -> tuple[int, Mask]:
    """What `count` block rows from position `anchor` on see: the first visible position, and a mask from there on."""
    start, mask = 0, None
    if layer.window is not None:
        start = max(anchor - layer.window + (1 if layer.per_row else 0), 0)
        if layer.per_row and anchor + count > layer.window:
            rows = mx.arange(anchor, anchor + count)[:, None]
            columns = mx.arange(start, anchor + count)[None]
            mask = columns > rows - layer.window
            if layer.causal:
                mask = mask & (columns <= rows)
    if layer.causal and mask is None:
        return start, "causal"
    return start, mask


class Attention(nn.Module):
    """Block rows attend to the context rows and to the block itself, as far as their layer lets them."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
        self.gated, self.eps, self.value_norm = config.gated_query, config.eps, config.value_norm
        width, bias = config.hidden_size, config.attention_bias
        queries = config.heads * config.head_dim
        self.q_proj = nn.Linear(width, 2 * queries if config.gated_query else queries, bias=bias)
        self.k_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=bias)
        if not config.key_is_value:
            self.v_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(queries, width, bias=bias)
        self.q_norm = nn.RMSNorm(config.head_dim, config.eps)
        self.k_norm = nn.RMSNorm(config.head_dim, config.eps)
        if config.attention_sinks:
            self.attention_sink_bias = mx.zeros((config.heads,))
        self.rope = _rope(config.rope, config.head_dim)

    def _split(self, rows: mx.array, heads: int) -> mx.array:
        return rows.reshape(rows.shape[0], rows.shape[1], heads, -1)

    def remember(self, rows: mx.array, held: KeyValues) -> None:
        """Project `rows` [1, n, d] to keys and values at the next positions."""
        keys = self._split(self.k_proj(rows), self.kv_heads)
        values = self._split(self.v_proj(rows), self.kv_heads) if "v_proj" in self else keys
        if self.value_norm:
            values = mx.fast.rms_norm(values, None, self.eps)
        keys = self.rope(self.k_norm(keys).transpose(0, 2, 1, 3), offset=held.length)
        held.extend(keys, values.transpose(0, 2, 1, 3))

    def __call__(self, block: mx.array, context: mx.array | None, held: KeyValues, seen: tuple[int, Mask]) -> mx.array:
        """Attend with `block` [1, n, d] after adding `context` rows; leaves `held` n rows too long."""
        # Context and block rows take consecutive positions and the same projections: one product for both.
        self.remember(block if context is None else mx.concatenate([context, block], axis=1), held)
        count = block.shape[1]
        queries = self._split(self.q_proj(block), self.heads)
        if self.gated:
            queries, gate = mx.split(queries, 2, axis=-1)
        queries = self.rope(self.q_norm(queries).transpose(0, 2, 1, 3), offset=held.length - count)
        keys, values = held.since(seen[0])
        sinks = self.attention_sink_bias if "attention_sink_bias" in self else None
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.scale, mask=seen[1], sinks=sinks)
        out = out.transpose(0, 2, 1, 3).reshape(1, count, -1)
        if self.gated:
            out = out * mx.sigmoid(gate.reshape(1, count, -1))
        return self.o_proj(out)


def _rope(config: RopeConfig, head_dim: int) -> nn.Module:
    scaling = config.scaling or {}
    return initialize_rope(
        config.rotated or head_dim,
        config.theta,
        config.traditional,
        config.scaling,
        scaling.get("max_position_embeddings"),
    )


class MLP(nn.Module):
    """Gated feed-forward."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gelu = config.activation == "gelu_tanh"
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(nn.gelu_approx(gate) * up if self.gelu else swiglu(gate, up))


class Layer(nn.Module):
    """One decoder layer. Context rows skip the input norm; block rows pass it."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.eps)

    def __call__(self, block: mx.array, context: mx.array | None, held: KeyValues, seen: tuple[int, Mask]) -> mx.array:
        block = block + self.self_attn(self.input_layernorm(block), context, held, seen)
        return block + self.mlp(self.post_attention_layernorm(block))


class SandwichLayer(Layer):
    """Gemma 4's: each sub-layer is normed before and after, and the layer ends with a learned scale."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.pre_feedforward_layernorm = nn.RMSNorm(config.hidden_size, config.eps)
        self.post_feedforward_layernorm = nn.RMSNorm(config.hidden_size, config.eps)
        self.layer_scalar = mx.ones((1,))

    def __call__(self, block: mx.array, context: mx.array | None, held: KeyValues, seen: tuple[int, Mask]) -> mx.array:
        attended = self.self_attn(self.input_layernorm(block), context, held, seen)
        block = block + self.post_attention_layernorm(attended)
        block = block + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(block)))
        return block * self.layer_scalar


class ConvolvedLayer(Layer):
    """DFlash 2's: a dynamic convolution before and after each sub-layer; context rows take no part in it."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        assert config.convolution is not None
        self.attention_conv = DynamicConvolution(config.convolution, config.hidden_size)
        self.mlp_conv = DynamicConvolution(config.convolution, config.hidden_size)

    def __call__(self, block: mx.array, context: mx.array | None, held: KeyValues, seen: tuple[int, Mask]) -> mx.array:
        conv = self.attention_conv
        rows = self.input_layernorm(block)
        before, after = conv.kernels(rows)
        block = block + conv.convolve(self.self_attn(conv.convolve(rows, before), context, held, seen), after)
        conv = self.mlp_conv
        rows = self.post_attention_layernorm(block)
        before, after = conv.kernels(rows)
        return block + conv.convolve(self.mlp(conv.convolve(rows, before)), after)


class Backbone(nn.Module):
    """fc and hidden_norm turn tapped rows into context features; the layers turn a masked block into hidden rows."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        kind = ConvolvedLayer if config.convolution else SandwichLayer if config.sandwich_norms else Layer
        self._sights = config.layers
        self.fc = nn.Linear(len(config.taps) * config.target_hidden, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.eps)
        self.layers = [kind(config) for _ in config.layers]
        self.norm = nn.RMSNorm(config.hidden_size, config.eps)

    def features(self, taps: mx.array) -> mx.array:
        """Context features [1, n, d] of tapped rows [1, n, m·d]."""
        return self.hidden_norm(self.fc(taps))

    def absorb(self, context: mx.array, held: list[KeyValues]) -> None:
        """Add context features to every layer's keys and values without drafting."""
        for layer, rows in zip(self.layers, held, strict=True):
            layer.self_attn.remember(context, rows)

    def __call__(self, block: mx.array, context: mx.array | None, held: list[KeyValues]) -> mx.array:
        """Hidden rows [1, n, d] of an embedded block, before the final norm; block keys and values are not kept."""
        count = block.shape[1]
        anchor = held[0].length + (0 if context is None else context.shape[1])
        seen = {layer: sight(layer, anchor, count) for layer in dict.fromkeys(self._sights)}
        for layer, rows, kind in zip(self.layers, held, self._sights, strict=True):
            block = layer(block, context, rows, seen[kind])
            rows.truncate(anchor)
        return block
