"""Measuring the cost model of a loaded pair: the only part of this room that touches MLX."""

import time
from collections.abc import Callable
from statistics import median

import mlx.core as mx

from dspark.drafters.drafter import Drafter
from dspark.targets.target import Target
from dspark.tuning.costs import CostModel

_WIDTHS = (1, 2, 3, 5, 8, 16)
_REPEATS = 4
_CONTEXT_TOKENS = 64


def measure_costs(target: Target, drafter: Drafter | None) -> CostModel:
    """Time target forwards and drafts at a short context: medians of a few interleaved, warmed repeats.

    A quick look for machines without a calibration profile; about thirty target forwards.
    """
    cache = target.new_cache()
    target.tap(drafter.taps if drafter else ())
    context_tokens = mx.array([[(11 * i + 3) % target.vocabulary for i in range(_CONTEXT_TOKENS)]])
    _, rows = target.forward(context_tokens, cache)
    mx.eval(cache.arrays)
    base = cache.length

    def forward(width: int) -> None:
        logits, tapped = target.forward(context_tokens[:, :width], cache)
        mx.eval(mx.argmax(logits[0], axis=-1), *([] if tapped is None else [tapped]))
        cache.truncate(base)

    verify = _interleaved({width: lambda width=width: forward(width) for width in _WIDTHS})
    draft: dict[int, float] = {}
    if drafter is not None and rows is not None:
        context = drafter.new_context()
        context.append(rows)
        mx.eval(context.arrays)
        anchor = mx.array([1], dtype=mx.int32)

        def propose(cap: int) -> None:
            context.append(rows[:, :2])
            proposed = drafter.draft(context, anchor, cap)
            mx.eval(proposed.tokens, *([] if proposed.confidence is None else [proposed.confidence]))

        caps = sorted({1, (drafter.block + 1) // 2, drafter.block})
        draft = _interleaved({cap: lambda cap=cap: propose(cap) for cap in caps})
    return CostModel(tuple(sorted(verify.items())), tuple(sorted(draft.items())), source="measured at load")


def _interleaved(runs: dict[int, Callable[[], None]]) -> dict[int, float]:
    times: dict[int, list[float]] = {key: [] for key in runs}
    for repeat in range(1 + _REPEATS):
        for key, run in runs.items():
            started = time.perf_counter()
            run()
            if repeat > 0:  # the first pass warms
                times[key].append((time.perf_counter() - started) * 1e3)
    return {key: median(values) for key, values in times.items()}
