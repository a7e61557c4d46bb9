"""Timing a loaded pair: the only part of this room that touches MLX."""

from collections.abc import Callable, Iterable

import mlx.core as mx

from dspark.arrays import integers
from dspark.drafters.drafter import Drafter, greedy
from dspark.targets.target import Target
from dspark.tuning.costs import CostModel
from dspark.tuning.curves import Curves, Level, Prefill
from dspark.tuning.timing import Stopwatch, Timing

SHALLOW_TOKENS = 64
_QUICK_WIDTHS = (1, 2, 3, 5, 8, 16)
_AHEAD_STEPS = 4


def measure_costs(target: Target, drafter: Drafter | None) -> CostModel:
    """A quick look at a short context, for pairs without a calibration profile: some dozens of target forwards."""
    bench = Bench(target, drafter, Stopwatch(0.0, least=4))
    caps = sorted({1, (drafter.block + 1) // 2, drafter.block}) if drafter is not None else []
    return Curves((bench.level(_QUICK_WIDTHS, caps),), bench.ahead()).costs("measured at load")


class Bench:
    """A target and its drafter over a context that grows, to be timed at each depth."""

    def __init__(self, target: Target, drafter: Drafter | None, stopwatch: Stopwatch) -> None:
        """Reads the first `SHALLOW_TOKENS` of context."""
        self._target = target
        self._drafter = drafter
        self._stopwatch = stopwatch
        self._cache = target.new_cache()
        self._context = drafter.new_context() if drafter is not None else None
        self._rows: mx.array | None = None
        self.advance(SHALLOW_TOKENS, SHALLOW_TOKENS)

    @property
    def depth(self) -> int:
        """Tokens of context."""
        return self._cache.length

    def advance(self, depth: int, chunk: int) -> None:
        """Read on to `depth` in chunks, for target and drafter."""
        while (missing := depth - self.depth) > 0:
            tokens = self._text(min(chunk, missing))
            _, self._rows = self._forward(tokens)
            held = self._cache.arrays
            if self._context is not None:
                self._context.append(self._rows, tokens)
                held = [*held, *self._context.arrays]
            mx.eval(held)
            mx.clear_cache()

    def level(self, widths: Iterable[int], caps: Iterable[int], tick: Callable[[], None] = lambda: None) -> Level:
        """Forwards and drafts at this depth."""
        verify = self._stopwatch.table({width: self._verifying(width) for width in widths}, tick)
        return Level(self.depth, verify, self.drafts(caps, tick))

    def drafts(self, caps: Iterable[int], tick: Callable[[], None] = lambda: None) -> dict[int, Timing]:
        """Drafts at this depth, by cap; none without a drafter."""
        if self._drafter is None or self._context is None:
            return {}
        draft = self._stopwatch.table({cap: self._drafting(self._drafter, cap) for cap in caps}, tick)
        self._context.truncate(self.depth)
        return draft

    def ahead(self, tick: Callable[[], None] = lambda: None) -> Timing | None:
        """One plain step that is fed ahead of its reading; None for caches that could not take it back."""
        if self._cache.rollback != "trim":
            return None
        steps = self._stopwatch.table({_AHEAD_STEPS: self._feeding_ahead}, tick)[_AHEAD_STEPS]
        return Timing(steps.ms / _AHEAD_STEPS, steps.spread, steps.count, steps.rejected)

    def plain(self) -> Timing:
        """One row, by itself."""
        return self._stopwatch.table({1: self._verifying(1)})[1]

    def _forward(self, tokens: list[int]) -> tuple[mx.array, mx.array | None]:
        self._target.tap(self._drafter.taps if self._drafter else ())
        return self._target.forward(mx.array([tokens], dtype=mx.int32), self._cache)

    def _verifying(self, width: int) -> Callable[[], None]:
        tokens, base = self._text(width), self.depth

        def verify() -> None:
            logits, tapped = self._forward(tokens)
            mx.eval(mx.argmax(logits[0], axis=-1), *([] if tapped is None else [tapped]))
            if width > 1 and self._cache.rollback != "trim":
                # Giving back a part of a block costs these caches something; half of it is a fair case.
                self._cache.truncate(base + (width + 1) // 2)
                mx.eval(self._cache.arrays)
            self._cache.truncate(base)

        return verify

    def _feeding_ahead(self) -> None:
        base, fed = self.depth, [mx.array([1], dtype=mx.int32)]
        self._target.tap(self._drafter.taps if self._drafter else ())
        for _ in range(_AHEAD_STEPS):
            logits, tapped = self._target.forward(fed[-1][None], self._cache)
            fed.append(mx.argmax(logits[0], axis=-1).astype(mx.int32))
            mx.async_eval(fed[-1], *([] if tapped is None else [tapped]))
            if len(fed) > 2:
                integers(fed[-2])
        integers(fed[-1])
        self._cache.truncate(base)

    def _drafting(self, drafter: Drafter, cap: int) -> Callable[[], None]:
        """A draft after a round that settled two tokens, whose rows are taken in first."""
        context, anchor = self._context, mx.array([1], dtype=mx.int32)
        rows, tokens = None if self._rows is None else self._rows[:, :2], self._text(2)
        assert context is not None

        def draft() -> None:
            context.append(rows, tokens)
            proposed = drafter.draft(context, anchor, cap, greedy)
            mx.eval(proposed.tokens, *([] if proposed.confidence is None else [proposed.confidence]))

        return draft

    def _text(self, tokens: int) -> list[int]:
        return _text(self._target, self.depth, tokens)


def measure_prefill(target: Target, chunk: int, tokens: int, stopwatch: Stopwatch) -> Prefill:
    """Read `tokens` of prompt in chunks of `chunk` into an empty cache."""
    text = _text(target, 0, tokens)
    target.tap(())

    def read() -> None:
        cache = target.new_cache()
        for at in range(0, tokens, chunk):
            target.forward(mx.array([text[at : at + chunk]], dtype=mx.int32), cache)
            mx.eval(cache.arrays)
            mx.clear_cache()

    return Prefill(chunk, tokens, tokens / max(stopwatch.once(read), 1e-6) * 1e3)


def _text(target: Target, start: int, tokens: int) -> list[int]:
    """Ids for the places from `start` on: any will do, as long as they vary."""
    return [(11 * place + 3) % target.vocabulary for place in range(start, start + tokens)]
