"""A slow, independent drafter in NumPy: the whole sequence at once, no caches, every rule written out."""

import math

import numpy as np

from dspark.drafters.config import DrafterConfig, LayerConfig


def block_rows(config: DrafterConfig, weights, taps, embedded, norm_offset=0.0):
    """Rows [n, d] after the final norm of an embedded block [n, d] behind the context of `taps` [s, m·d].

    `embedded` has its scale already.
    """
    w = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}

    def norm(x, name):
        return rms(x, config.eps) * (w[name] + norm_offset)

    context = norm(np.asarray(taps, dtype=np.float64) @ w["fc.weight"].T, "hidden_norm.weight")
    block = np.asarray(embedded, dtype=np.float64)
    for index, layer in enumerate(config.layers):
        at = f"layers.{index}"
        kernels = Kernels(config, w, at)
        rows = norm(block, f"{at}.input_layernorm.weight")
        before, after = kernels("attention_conv", rows)
        out = after(attention(config, layer, w, f"{at}.self_attn", context, before(rows), norm))
        if config.sandwich_norms:
            block = block + norm(out, f"{at}.post_attention_layernorm.weight")
            out = mlp(config, w, at, norm(block, f"{at}.pre_feedforward_layernorm.weight"))
            block = (block + norm(out, f"{at}.post_feedforward_layernorm.weight")) * w[f"{at}.layer_scalar"]
            continue
        block = block + out
        rows = norm(block, f"{at}.post_attention_layernorm.weight")
        before, after = kernels("mlp_conv", rows)
        block = block + after(mlp(config, w, at, before(rows)))
    return norm(block, "norm.weight")


def attention(config, layer: LayerConfig, w, at, context, block, norm):
    """Each row of the block against every position it may see, one head at a time."""
    s, n, hd = len(context), len(block), config.head_dim
    rows = np.concatenate([context, block])
    q = (block @ w[f"{at}.q_proj.weight"].T).reshape(n, config.heads, -1)
    gate = q[..., hd:] if config.gated_query else None
    q = norm(q[..., :hd], f"{at}.q_norm.weight")
    raw = (rows @ w[f"{at}.k_proj.weight"].T).reshape(s + n, config.kv_heads, hd)
    k = norm(raw, f"{at}.k_norm.weight")
    v = raw if config.key_is_value else (rows @ w[f"{at}.v_proj.weight"].T).reshape(s + n, config.kv_heads, hd)
    if config.value_norm:
        v = rms(v, config.eps)
    scale = hd**-0.5 if config.attention_scale is None else config.attention_scale
    out = np.zeros((n, config.heads, hd))
    for head in range(config.heads):
        shared = head * config.kv_heads // config.heads
        for i in range(n):
            query = turned(config, q[i, head], s + i)
            seen = [j for j in range(s + n) if visible(layer, s, s + i, j)]
            scores = np.array([query @ turned(config, k[j, shared], j) * scale for j in seen])
            weight = np.exp(scores - scores.max())
            total = weight.sum()
            if config.attention_sinks:
                total += math.exp(w[f"{at}.attention_sink_bias"][head] - scores.max())
            out[i, head] = sum(p / total * v[j, shared] for p, j in zip(weight, seen, strict=True))
    if gate is not None:
        out = out / (1 + np.exp(-gate))
    return out.reshape(n, -1) @ w[f"{at}.o_proj.weight"].T


def visible(layer: LayerConfig, anchor: int, row: int, column: int) -> bool:
    """Whether the block row at position `row` sees the position `column`."""
    if layer.causal and column > row:
        return False
    if layer.window is None:
        return True
    return row - column <= layer.window - 1 if layer.per_row else column >= anchor - layer.window


def turned(config: DrafterConfig, vector, position: int):
    """A head's vector at its position."""
    rope, hd = config.rope, config.head_dim
    scaling = rope.scaling or {}
    kind, dims = scaling.get("rope_type"), rope.rotated or hd
    frequencies = np.array([rope.theta ** (-2 * i / dims) for i in range(dims // 2)])
    grow = 1.0
    if kind == "linear":
        frequencies = frequencies / scaling["factor"]
    if kind == "proportional":
        frequencies[int(hd * scaling["partial_rotary_factor"]) // 2 :] = 0.0
    if kind == "yarn":
        factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
        grow = 0.1 * math.log(factor) + 1

        def turns_at(rotations):
            return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

        low = max(math.floor(turns_at(scaling.get("beta_fast", 32))), 0)
        high = min(math.ceil(turns_at(scaling.get("beta_slow", 1))), dims - 1)
        high = high + 0.001 if high == low else high
        ramp = np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
        frequencies = frequencies / factor * ramp + frequencies * (1 - ramp)
    out = np.array(vector, dtype=np.float64)
    out[:dims] *= grow
    for i, frequency in enumerate(frequencies):
        a, b = (2 * i, 2 * i + 1) if rope.traditional else (i, i + dims // 2)
        x, y, angle = out[a], out[b], position * frequency
        out[a], out[b] = x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)
    return out


def mlp(config, w, at, x):
    gate, up = x @ w[f"{at}.mlp.gate_proj.weight"].T, x @ w[f"{at}.mlp.up_proj.weight"].T
    if config.activation == "gelu_tanh":
        gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    else:
        gate = gate / (1 + np.exp(-gate))
    return (gate * up) @ w[f"{at}.mlp.down_proj.weight"].T


class Kernels:
    """DFlash 2's convolutions, or nothing."""

    def __init__(self, config, w, at):
        self.config, self.w, self.at = config, w, at

    def __call__(self, name, rows):
        if self.config.convolution is None:
            return (lambda x: x), (lambda x: x)
        return tuple(lambda x, side=side: self.convolve(name, side, rows, x) for side in (0, 1))

    def convolve(self, name, side, rows, x):
        taps, group = self.config.convolution.taps, self.config.convolution.group
        groups = x.shape[1] // group
        base = self.w[f"{self.at}.{name}.base_kernel"]
        change = rows @ self.w[f"{self.at}.{name}.kernel_projection.weight"].T
        out = np.zeros_like(x)
        for t in range(len(x)):
            for back in range(min(taps, t + 1)):
                for c in range(x.shape[1]):
                    delta = change[t, (side * taps + back) * groups + c // group]
                    out[t, c] += (base[side, back, c] + delta) * x[t - back, c]
        return out


def rms(x, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))
