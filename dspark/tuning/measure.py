"""Measuring the cost model of a loaded pair: the only part of this room that touches MLX."""

import time
from collections.abc import Callable, Sequence
from statistics import median

import mlx.core as mx

from dspark.arrays import integers
from dspark.drafters.drafter import Drafter, greedy
from dspark.targets.target import Target
from dspark.tuning.costs import CostModel

_WIDTHS = (1, 2, 3, 5, 8, 16)
_REPEATS = 4
_AHEAD_STEPS = 6
_CONTEXT_TOKENS = 64


def measure_costs(target: Target, drafter: Drafter | None) -> CostModel:
    """Time target forwards and drafts at a short context: medians of a few interleaved, warmed repeats.

    A quick look for machines without a calibration profile; about thirty target forwards.
    """
    cache = target.new_cache()
    target.tap(drafter.taps if drafter else ())
    text = [(11 * i + 3) % target.vocabulary for i in range(_CONTEXT_TOKENS)]
    context_tokens = mx.array([text])
    _, rows = target.forward(context_tokens, cache)
    mx.eval(cache.arrays)
    base = cache.length

    def forward(width: int) -> None:
        logits, tapped = target.forward(context_tokens[:, :width], cache)
        mx.eval(mx.argmax(logits[0], axis=-1), *([] if tapped is None else [tapped]))
        if width > 1 and cache.rollback != "trim":
            # Giving back a part of a block costs these caches something; half of it is a fair case.
            cache.truncate(base + (width + 1) // 2)
            mx.eval(cache.arrays)
        cache.truncate(base)

    def feed_ahead(steps: int) -> None:
        fed = [context_tokens[:, 0]]
        for _ in range(steps):
            logits, tapped = target.forward(fed[-1][None], cache)
            fed.append(mx.argmax(logits[0], axis=-1).astype(mx.int32))
            mx.async_eval(fed[-1], *([] if tapped is None else [tapped]))
            if len(fed) > 2:
                integers(fed[-2])
        integers(fed[-1])
        cache.truncate(base)

    verify = _interleaved(forward, _WIDTHS)
    ahead = _interleaved(feed_ahead, (_AHEAD_STEPS,))[_AHEAD_STEPS] / _AHEAD_STEPS if cache.rollback == "trim" else None
    draft: dict[int, float] = {}
    if drafter is not None:
        context = drafter.new_context()
        context.append(rows, text)
        mx.eval(context.arrays)
        anchor = mx.array([1], dtype=mx.int32)

        def propose(cap: int) -> None:
            context.append(None if rows is None else rows[:, :2], text[:2])
            proposed = drafter.draft(context, anchor, cap, greedy)
            mx.eval(proposed.tokens, *([] if proposed.confidence is None else [proposed.confidence]))

        draft = _interleaved(propose, sorted({1, (drafter.block + 1) // 2, drafter.block}))
    return CostModel(tuple(sorted(verify.items())), tuple(sorted(draft.items())), "measured at load", ahead)


def _interleaved(run: Callable[[int], None], sizes: Sequence[int]) -> dict[int, float]:
    """Median milliseconds of `run` by size."""
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for repeat in range(1 + _REPEATS):
        for size in sizes:
            started = time.perf_counter()
            run(size)
            if repeat > 0:  # the first pass warms
                times[size].append((time.perf_counter() - started) * 1e3)
    return {size: median(values) for size, values in times.items()}
