"""Random conversations against an engine that keeps nothing: the ids are equal, whatever happened before.

`MLX_DSPARK_LONG_CONVERSATIONS=20` plays that many of each kind of cache, several times as long, never the same ones.
"""

import os
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from prefix.pairs import KINDS, assert_same, tokens

from dspark.decoding.events import Finished
from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import _prefix_cache
from dspark.prefix.options import PrefixOptions

LONG = int(os.environ.get("MLX_DSPARK_LONG_CONVERSATIONS", "0"))
# So little that a few conversations do not fit together.
LIMIT_BYTES = {"trimmed, dspark": 700_000, "kv-bits 8": 700_000, "hybrid": 150_000, "ring": 120_000, "chunks": 900_000}
PLAYED = {**LIMIT_BYTES, **({kind: LIMIT_BYTES.get(kind, 400_000) for kind in KINDS} if LONG else {})}
DISK_BYTES = 600_000
ANSWER = 6
WHAT = ("append", "append", "append", "edit", "fork", "together", "cancel", "hang up", "error")
BEFORE = ("restart", "crash", "damage", "settle", "shed")

turns = st.tuples(
    st.sampled_from([*WHAT, *BEFORE]),
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
        self.engine, self.histories, self._said, self._harmed = engine, [tokens(40, seed=1)], 0, False
        self._folder = folder
        self._longest = min(600, engine.loaded.context_window - 2 * ANSWER)
        self._options = PrefixOptions(
            slots=3, rung_tokens=24, limit_bytes=PLAYED[kind], folder=str(folder), disk_bytes=DISK_BYTES
        )
        self._cold = _prefix_cache(engine._pair, PrefixOptions(limit_bytes=0))
        engine._prefix = _prefix_cache(engine._pair, self._options)

    def turn(self, what, which, new, mode, at):
        which %= len(self.histories)
        self._said += 1
        fresh = tokens(new, seed=self._said)
        history = self.histories[which]
        cut = len(history) * at // 10
        if what in BEFORE:
            self._before(what, at)
        if what == "edit":
            history = [*history[:cut], *fresh, *history[cut + 5 :]]
        elif what == "fork":
            self.histories.append(history)
            which, history = len(self.histories) - 1, [*history[:cut], *fresh]
        else:
            history = [*history, *fresh]
        if len(history) > self._longest:
            history = fresh
        mode = self.engine.loaded.modes[mode % len(self.engine.loaded.modes)]
        if what in ("cancel", "hang up"):
            self._leave_early(history, mode, at, hang_up=what == "hang up")
        elif what == "error":
            self._break_down(history, mode, at)
        elif what == "together":
            other = self.histories[at % len(self.histories)]
            self._together(history, [*other, *fresh][: self._longest], mode)
        self.histories[which] = [*history, *self._ask(history, mode)]
        self._check()

    def _before(self, what, at):
        if what == "settle":
            self.engine.prefix_cache.settle()
        elif what == "shed":
            self.engine.prefix_cache.shed(("all", "rungs", 40_000)[at % 3])
        else:
            if what == "restart":
                self.engine._close_prefix()
            if what == "damage":
                self._damage(at)
            self._harmed |= what != "restart"  # a process that did not end in order may still write
            self.engine._prefix = _prefix_cache(self.engine._pair, self._options)

    def _damage(self, at):
        self.engine._prefix._disk.wait()
        files = sorted(self._folder.glob("*.safetensors"))
        if files:
            path = files[at % len(files)]
            data = bytearray(path.read_bytes())
            data[len(data) * at // 10] ^= 1
            path.write_bytes(data if at % 3 else data[: len(data) // 2])

    def _ask(self, prompt, mode):
        request = self._request(prompt, mode)
        *_, warm = self.engine.generate(request)
        return self._as_cold(request, warm)

    def _as_cold(self, request, warm):
        kept, self.engine._prefix = self.engine._prefix, self._cold
        *_, cold = self.engine.generate(request)
        self.engine._prefix = kept
        assert cold.statistics.cached_tokens == 0
        assert_same(self.engine, request.prompt, warm.tokens, cold.tokens)
        return list(cold.tokens)

    def _request(self, prompt, mode, **more):
        return Request(prompt, ANSWER, speculation=SpeculationOptions(mode, cap=2), **more)

    def _together(self, one, other, mode):
        """Two answers decoded in turns."""
        requests = [self._request(prompt, mode) for prompt in (one, other)]
        decodings = [self.engine.start(request) for request in requests]
        streams, last = [decoding.events() for decoding in decodings], [None, None]
        while any(stream is not None for stream in streams):
            for at, stream in enumerate(streams):
                if stream is None:
                    continue
                event = next(stream, None)
                streams[at] = stream if event is not None else None
                last[at] = event or last[at]
                self._held_alone(decoding for decoding, open_ in zip(decodings, streams, strict=True) if open_)
        for request, finished in zip(requests, last, strict=True):
            self._as_cold(request, finished)

    def _held_alone(self, decodings):
        """What a generation holds is no other's, and in no slot."""
        held = [decoding.sequence.cache for decoding in decodings]
        held += [slot.cache for slot in self.engine._prefix._slots]
        assert len({id(one) for one in held}) == len(held)
        entries = [id(entry) for one in held for entry in one.entries]
        assert len(set(entries)) == len(entries)

    def _leave_early(self, prompt, mode, at, *, hang_up):
        heard = []
        request = self._request(prompt, mode, cancelled=lambda: not hang_up and len(heard) > at)
        decoding = self.engine.start(request)
        stream = decoding.events()
        for event in stream:
            heard.append(event)
            if not isinstance(event, Finished):
                self._held_alone([decoding])
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
                list(self.engine.generate(self._request(prompt, mode)))
        finally:
            layer.__class__ = plain

    def _check(self):
        prefix = self.engine.prefix_cache
        report = prefix.report()
        assert report.bytes <= report.limit_bytes and report.slots <= report.slot_limit
        assert report.disk.bytes <= DISK_BYTES or self._harmed
        assert report.disk.errors == 0 or self._harmed
        self._held_alone([])
        slots = prefix._slots
        assert len({id(slot.context) for slot in slots if slot.context}) == sum(bool(slot.context) for slot in slots)
        for slot in slots:
            assert slot.cache.length == len(slot.tokens)
            assert slot.context is None or slot.context.length <= slot.cache.length
            assert all(one.length <= slot.cache.length for one in slot.cache.checkpoints)


@pytest.mark.parametrize("kind", PLAYED)
@settings(
    max_examples=LONG or 5,
    deadline=None,
    derandomize=not LONG,
    database=None,
    phases=[Phase.generate],  # a list of turns is read as it is; shrinking it takes minutes
    suppress_health_check=list(HealthCheck),
)
@given(played=st.lists(turns, min_size=20 if LONG else 4, max_size=60 if LONG else 10))
def test_acceptance_2_random_conversations_say_what_a_cold_engine_says(engines, kind, tmp_path_factory, played):
    play = Play(engines(kind), kind, tmp_path_factory.mktemp("conversations"))
    for turn in played:
        play.turn(*turn)
    play.engine._close_prefix()
