"""Measuring what a chunk of a prompt takes while it is computed: one short pass, and the attention kernel alone.

Which buffers live at once depends on the device, the type and the kernels that MLX picks, so it is asked and not
calculated. Scores grow with rows times context; they are measured without the model, so that no long prompt is needed.
"""

from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import cache as mlx_cache
from mlx_lm.models.base import scaled_dot_product_attention

from dspark.drafters.drafter import Drafter
from dspark.memory.estimate import PrefillCost
from dspark.targets.caches import TargetCache
from dspark.targets.footprint import cache_footprint
from dspark.targets.rewind import leaves
from dspark.targets.target import Target

_ROWS = 128
_HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_SCORE_ROWS, _SCORE_DEPTHS = 32, (1024, 2048)


def measure_prefill(target: Target, drafter: Drafter | None) -> PrefillCost:
    """Takes one pass over 128 tokens. Resets MLX's record of its peak memory."""
    cache, context = target.new_cache(), drafter.new_context() if drafter else None
    rows = min(_ROWS, target.context_window)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    target.tap(drafter.taps if drafter else ())
    tapped = target.forward(mx.zeros((1, rows), dtype=mx.int32), cache)[1]
    held = cache.arrays
    if context is not None:
        context.append(tapped, [0] * rows)
        held += context.arrays
    mx.eval(held)
    peak = mx.get_peak_memory() - before
    per_token = sum(array.nbytes for array in context.arrays) // rows if context is not None else 0
    footprint = cache_footprint(target)
    kept = PrefillCost(
        footprint,
        context_bytes=per_token,
        layer_bytes=footprint.per_token // max(sum(_grows(entry) for entry in leaves(cache.entries)), 1),
        row_bytes=0,
        score_bytes=_score_bytes(target, cache),
        span=_span(cache),
        quantized=target.kv_bits is not None,
    )
    rest = peak - kept.held(rows) - int(kept.score_bytes * rows * rows)
    return replace(kept, row_bytes=max(rest, 0) // rows)


def _grows(entry: Any) -> bool:
    return hasattr(entry, "offset") and not getattr(entry, "max_size", None)


def _span(cache: TargetCache) -> int | None:
    """The widest window where every attention layer has one."""
    windows = [
        getattr(entry, "max_size", None)
        for entry in leaves(cache.entries)
        if not isinstance(entry, mlx_cache.ArraysCache)
    ]
    return max((int(window) for window in windows if window), default=None) if all(windows) else None


def _score_bytes(target: Target, cache: TargetCache) -> float:
    """Bytes that attention takes for each row of a pass and token of context."""
    entry = next((entry for entry in leaves(cache.entries) if getattr(entry, "keys", None) is not None), None)
    if entry is None:
        return 0.0  # recurrent throughout
    keys, values = _shape(entry, entry.keys), _shape(entry, entry.values)
    heads = _heads(target, keys[1])
    if keys[1] == 1 and keys[-1] != values[-1]:
        # A compressed cache is unpacked by the model's own code, which also adds positions as a mask of scores' size.
        return 2.0 * heads * target.dtype.size
    shallow, deep = (_attention_peak(target, entry, heads, depth) for depth in _SCORE_DEPTHS)
    return max(deep - shallow, 0) / (_SCORE_ROWS * (_SCORE_DEPTHS[1] - _SCORE_DEPTHS[0]))


def _attention_peak(target: Target, entry: Any, heads: int, depth: int) -> int:
    """What one layer's attention takes over `depth` tokens, keys and values apart."""
    keys, values = _zeros(entry.keys, depth), _zeros(entry.values, depth)
    queries = mx.zeros((1, heads, _SCORE_ROWS, _shape(entry, entry.keys)[-1]), dtype=target.dtype)
    sinks = mx.zeros((heads,), dtype=target.dtype) if _has_sinks(target) else None
    mx.eval(queries, keys, values, sinks)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(scaled_dot_product_attention(queries, keys, values, entry, scale=1.0, mask="causal", sinks=sinks))
    return int(mx.get_peak_memory() - before)


def _has_sinks(target: Target) -> bool:
    """Whether its attention has sinks, which MLX computes in another way."""
    return any(path.endswith("sinks") for path, _ in tree_flatten(target.model.parameters()))


def _heads(target: Target, least: int) -> int:
    """Query heads, the most of any layer; where the config has no usual name for them, those of the keys."""
    config = {**target.config, **(target.config.get("text_config") or {})}
    found = next((config[key] for key in _HEAD_KEYS if config.get(key)), least)
    most = max(found) if isinstance(found, list) else found
    return int(most) if most % least == 0 else least


def _shape(entry: Any, stored: Any) -> tuple[int, ...]:
    """[1, heads, rows, features] of keys or values, also of quantized ones."""
    if isinstance(stored, list | tuple):
        packed = stored[0].shape
        return (*packed[:-1], packed[-1] * 32 // entry.bits)
    return tuple(stored.shape)


def _zeros(stored: Any, depth: int) -> Any:
    if isinstance(stored, list | tuple):
        return tuple(_zeros(part, depth) for part in stored)
    return mx.zeros((*stored.shape[:2], depth, stored.shape[-1]), dtype=stored.dtype)
