"""Whether a verify pass's attention is faster in chunks: both ways timed in turn, on the arrays of a real pass."""

import logging

import mlx.core as mx

from dspark.targets.attention import Pass
from dspark.tuning.timing import Stopwatch, Timing

# A gain of less is not worth another kernel.
_CLEARLY = 0.9
# How far the two may lie apart, in units of the type's rounding at the largest output: sums in float32 come out in
# another order, the half types round what comes out of them.
_ROUNDING = {mx.float32: 64, mx.float16: 8, mx.bfloat16: 4}
_BUDGET_S = 0.02
_WHOLE, _SPLIT = 0, 1
_LOG = logging.getLogger(__name__)


def on_metal() -> bool:
    """Whether MLX computes with the kernels that this is about."""
    return mx.metal.is_available() and mx.default_device().type == mx.DeviceType.gpu


def split_pays(one: Pass, stopwatch: Stopwatch | None = None) -> bool:
    """Whether chunks are clearly faster and say the same. Evaluates what leads to `one`."""
    stopwatch = stopwatch or Stopwatch(_BUDGET_S)
    try:
        mx.eval(one.queries, one.keys, one.values, *([one.mask] if isinstance(one.mask, mx.array) else []))
        if not agree(one.whole(), one.split()):
            return False
        times = stopwatch.table({_WHOLE: lambda: mx.eval(one.whole()), _SPLIT: lambda: mx.eval(one.split())})
    except RuntimeError as error:  # no memory for a second output, or no such kernel
        _LOG.debug("attention stays whole: %s", error)
        return False
    _LOG.debug(
        "attention of %d rows over %d: %.3f ms whole, %.3f ms in chunks of %d",
        *(one.queries.shape[2], one.keys.shape[2], times[_WHOLE].ms, times[_SPLIT].ms, one.chunk),
    )
    return _faster(times[_SPLIT], times[_WHOLE])


def agree(whole: mx.array, split: mx.array) -> bool:
    """Whether two outputs differ by no more than the order of their sums."""
    rounding = mx.finfo(whole.dtype).eps * _ROUNDING.get(whole.dtype, 0)
    apart = mx.abs(whole.astype(mx.float32) - split.astype(mx.float32)).max()
    return bool((apart <= rounding * mx.abs(whole).max().astype(mx.float32)).item())


def _faster(split: Timing, whole: Timing) -> bool:
    return not (split.bad or whole.bad) and split.ms < _CLEARLY * whole.ms
