"""Random conversations against an engine that keeps nothing: the ids are equal, whatever happened before."""

from contextlib import suppress
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from prefix.pairs import assert_same, tokens

from dspark.decoding.events import Finished
from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import _prefix_cache
from dspark.prefix.options import PrefixOptions

LIMIT_BYTES = {"trimmed, dspark": 700_000, "kv-bits 8": 700_000, "hybrid": 150_000, "ring": 120_000, "chunks": 900_000}
ANSWER = 6

turns = st.tuples(
    st.sampled_from(["append", "append", "append", "edit", "fork", "cancel", "hang up", "error", "restart", "shed"]),
    st.integers(0, 3),  # which conversation
    st.integers(1, 70),  # how much is new
    st.integers(0, 2),  # the mode
    st.integers(0, 9),  # where something happens
)


@pytest.fixture(scope="module")
def engines(home):
    return cache(home.engine)


class Play:
    """Conversations with one engine, each answer compared with a cold one."""

    def __init__(self, engine, kind, folder):
        self.engine, self.histories, self._said = engine, [tokens(40, seed=1)], 0
        self._options = PrefixOptions(
            slots=3, rung_tokens=24, limit_bytes=LIMIT_BYTES[kind], folder=str(folder), disk_bytes=600_000
        )
        self._cold = _prefix_cache(engine._pair, PrefixOptions(limit_bytes=0))
        engine._prefix = _prefix_cache(engine._pair, self._options)

    def turn(self, what, which, new, mode, at):
        which %= len(self.histories)
        self._said += 1
        fresh = tokens(new, seed=self._said)
        history = self.histories[which]
        cut = len(history) * at // 10
        if what == "restart":
            self.engine._close_prefix()
            self.engine._prefix = _prefix_cache(self.engine._pair, self._options)
            what = "append"
        if what == "shed":
            self.engine.prefix_cache.shed(("all", "rungs", 40_000)[at % 3])
            what = "append"
        if what == "edit":
            history = [*history[:cut], *fresh, *history[cut + 5 :]]
        elif what == "fork":
            self.histories.append(history)
            which, history = len(self.histories) - 1, [*history[:cut], *fresh]
        else:
            history = [*history, *fresh]
        history = history[:600]
        mode = self.engine.loaded.modes[mode % len(self.engine.loaded.modes)]
        if what in ("cancel", "hang up"):
            self._leave_early(history, mode, at, hang_up=what == "hang up")
        elif what == "error":
            self._break_down(history, mode, at)
        self.histories[which] = [*history, *self._ask(history, mode)]
        self._check()

    def _ask(self, prompt, mode):
        request = Request(prompt, ANSWER, speculation=SpeculationOptions(mode, cap=2))
        *_, warm = self.engine.generate(request)
        kept, self.engine._prefix = self.engine._prefix, self._cold
        *_, cold = self.engine.generate(request)
        self.engine._prefix = kept
        assert cold.statistics.cached_tokens == 0
        assert_same(self.engine, prompt, warm.tokens, cold.tokens)
        return list(cold.tokens)

    def _leave_early(self, prompt, mode, at, *, hang_up):
        heard = []
        decoding = self.engine.start(
            Request(
                prompt,
                ANSWER + 10,
                speculation=SpeculationOptions(mode, cap=2),
                cancelled=lambda: not hang_up and len(heard) > at,
            )
        )
        stream = decoding.events()
        for event in stream:
            heard.append(event)
            assert all(slot.cache is not decoding.sequence.cache for slot in self.engine._prefix._slots)
            if hang_up and len(heard) > at:
                stream.close()
        assert hang_up or isinstance(heard[-1], Finished)

    def _break_down(self, prompt, mode, at):
        layer = self.engine._pair.target.layers[1]
        plain, calls = type(layer), []

        def broken(module, *args, **kwargs):
            calls.append(1)
            if len(calls) > at % 4:
                raise RuntimeError("device lost")
            return plain.__call__(module, *args, **kwargs)

        layer.__class__ = type(plain.__name__, (plain,), {"__call__": broken})
        try:
            with suppress(RuntimeError):  # an answer may end before
                list(self.engine.generate(Request(prompt, 20, speculation=SpeculationOptions(mode, cap=2))))
        finally:
            layer.__class__ = plain

    def _check(self):
        prefix = self.engine.prefix_cache
        report = prefix.report()
        assert report.bytes <= report.limit_bytes and report.slots <= report.slot_limit
        assert report.disk.errors == 0
        slots = prefix._slots
        assert len({id(slot.cache) for slot in slots}) == len(slots)
        assert len({id(slot.context) for slot in slots if slot.context}) == sum(bool(slot.context) for slot in slots)
        for slot in slots:
            assert slot.cache.length == len(slot.tokens)
            assert slot.context is None or slot.context.length <= slot.cache.length
            assert all(one.length <= slot.cache.length for one in slot.cache.checkpoints)


@pytest.mark.parametrize("kind", LIMIT_BYTES)
@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # a list of turns is read as it is; shrinking it takes minutes
    suppress_health_check=list(HealthCheck),
)
@given(played=st.lists(turns, min_size=4, max_size=10))
def test_acceptance_2_random_conversations_say_what_a_cold_engine_says(engines, kind, tmp_path_factory, played):
    play = Play(engines(kind), kind, tmp_path_factory.mktemp("conversations"))
    for turn in played:
        play.turn(*turn)
    play.engine._close_prefix()
