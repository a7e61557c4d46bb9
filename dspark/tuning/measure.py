"""Timing a loaded pair: the only part of this room that touches MLX."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import mlx.core as mx

from dspark.arrays import integers
from dspark.drafters.drafter import Drafter, greedy
from dspark.targets.target import Target
from dspark.tuning.costs import Host
from dspark.tuning.curves import Level, Prefill
from dspark.tuning.timing import Stopwatch, Timed, Timing

SHALLOW_TOKENS = 64
_AHEAD_STEPS = 4


Action = tuple[Literal["verify", "draft", "ahead", "waiting", "onward"], int]


class Live(Protocol):
    """Rounds of a real answer, each with a draft of `cap` that is verified whole."""

    cap: int

    def waiting(self) -> float:
        """Do a round that reads its draft before it is verified; returns its milliseconds."""

    def onward(self) -> float:
        """Do a round that does not; returns its milliseconds."""

    @property
    def stuck(self) -> bool:
        """Whether no such round could be done: no answer was long enough."""


@dataclass(frozen=True)
class Shallow:
    """All that is measured at a short context; meanings as in `Curves`."""

    level: Level
    ahead: Timing | None
    host: Host | None


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
        return self._level(self._table(self._forwards(widths) | self._drafts(caps), tick))

    def shallow(
        self,
        widths: Iterable[int],
        caps: Iterable[int],
        live: Live | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> Shallow:
        """Forwards, drafts, plain steps fed ahead and whole rounds, in turn: they are held against each other.

        Plain steps are left out for caches that could not take them back.
        """
        actions = self._forwards(widths) | self._drafts(caps)
        if self._cache.rollback == "trim":
            actions["ahead", _AHEAD_STEPS] = self._feeding_ahead
        if live is not None:
            actions |= self._forwards([live.cap + 1]) | self._drafts([live.cap])
            actions |= {("waiting", live.cap): live.waiting, ("onward", live.cap): live.onward}
        found = self._table(actions, tick)
        steps = found.get(("ahead", _AHEAD_STEPS))
        return Shallow(
            self._level(found),
            steps and Timing(steps.ms / _AHEAD_STEPS, steps.spread, steps.count, steps.rejected),
            None if live is None or live.stuck else _host(found, live.cap),
        )

    def drafts(self, caps: Iterable[int], tick: Callable[[], None] = lambda: None) -> dict[int, Timing]:
        """Drafts at this depth, by cap; none without a drafter."""
        return dict(self._level(self._table(self._drafts(caps), tick)).draft)

    def plain(self) -> Timing:
        """One row, by itself."""
        return self._stopwatch.table({1: self._verifying(1)})[1]

    def _table(self, actions: dict[Action, Timed], tick: Callable[[], None]) -> dict[Action, Timing]:
        found = self._stopwatch.table(actions, tick)
        if self._context is not None:  # drafts took rows in
            self._context.truncate(self.depth)
        return found

    def _level(self, found: dict[Action, Timing]) -> Level:
        verify, draft = (
            {place: found[kind, place] for kind, place in sorted(found) if kind == wanted}
            for wanted in ("verify", "draft")
        )
        return Level(self.depth, verify, draft)

    def _forwards(self, widths: Iterable[int]) -> dict[Action, Timed]:
        return {("verify", width): self._verifying(width) for width in widths}

    def _drafts(self, caps: Iterable[int]) -> dict[Action, Timed]:
        drafter = self._drafter
        return {} if drafter is None else {("draft", cap): self._drafting(drafter, cap) for cap in caps}

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


def _host(found: dict[Action, Timing], cap: int) -> Host:
    waiting, onward = found["waiting", cap].ms, found["onward", cap].ms
    parts = found["verify", cap + 1].ms + found["draft", cap].ms
    # Noise must not make it dearer not to wait.
    return Host(waiting - parts, max(waiting - onward, 0.0))


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
