"""Conversations on every kind of cache and in every mode: what is reused, and that nothing but time changes."""

from functools import cache

import pytest
from prefix.pairs import KINDS, RUNGS, ask, assert_same, forget, tokens

from dspark.decoding.events import Finished, PrefillProgress, RoundCommitted
from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import Engine
from dspark.prefix.cache import PrefixCache

SYSTEM = tokens(70, seed=1)
PLAIN = SpeculationOptions("baseline")


@pytest.fixture(scope="module")
def engines(home):
    return cache(home.engine)


def both(engine, prompt, mode, **request):
    """The answer with what is kept, and the one of an engine that keeps nothing."""
    warm = ask(engine, prompt, mode=mode, **request)
    prefix = engine._prefix
    engine._prefix = PrefixCache(prefix._options, mode=prefix._mode)
    cold = ask(engine, prompt, mode=mode, **request)
    engine._prefix = prefix
    assert_same(engine, prompt, warm.tokens, cold.tokens)
    assert cold.statistics.cached_tokens == 0
    return warm, cold


@pytest.mark.parametrize("kind", KINDS)
def test_c5_every_turn_after_the_first_is_reused_in_every_mode_and_says_the_same(engines, kind):
    engine = engines(kind)
    trims = engine.prefix_cache.report().mode == "trim"
    for mode in engine.loaded.modes:
        forget(engine)
        first = [*SYSTEM, *tokens(90, seed=2)]
        warm, _ = both(engine, first, mode)
        assert warm.statistics.cached_tokens == 0
        again, cold = both(engine, first, mode)
        assert again.statistics.cached_tokens == len(first) - 1, "the same prompt once more"
        assert again.statistics.accept_len == cold.statistics.accept_len
        second = [*first, *warm.tokens, *tokens(15, seed=3)]
        followed, cold = both(engine, second, mode)
        assert followed.statistics.cached_tokens >= len(first) - 1
        other = [*SYSTEM, *tokens(25, seed=4)]
        session, _ = both(engine, other, mode)
        assert session.statistics.cached_tokens == (len(SYSTEM) if trims else len(SYSTEM) - len(SYSTEM) % RUNGS)
        told = engine.prefix_cache.report()
        assert told.hits > 0 and told.partials > 0


@pytest.mark.parametrize("kind", KINDS)
def test_c18_a_history_edited_in_the_middle_is_reused_up_to_there(engines, kind):
    engine = engines(kind)
    for mode in engine.loaded.modes:
        forget(engine)
        history = tokens(220, seed=6)
        both(engine, history, mode)
        compacted = [*history[:100], *tokens(8, seed=7), *history[130:]]
        edited, _ = both(engine, compacted, mode)
        trims = engine.prefix_cache.report().mode == "trim"
        assert edited.statistics.cached_tokens == (100 if trims else 100 - 100 % RUNGS)
        visit = engine.prefix_cache.report().last
        assert (visit.outcome, visit.shared_tokens) == ("partial", 100)


@pytest.mark.parametrize("kind", ["hybrid", "ring", "chunks"])
def test_a_place_where_prompts_parted_becomes_an_anchor(engines, kind):
    """The third session on a system prompt starts behind all of it, though no rung lies there."""
    engine = engines(kind)
    engine._prefix._options = type(engine._prefix._options)(rung_tokens=0)
    forget(engine)
    system = tokens(150, seed=8)
    seen = [
        both(engine, [*system, *tokens(20, seed=seed)], "baseline")[0].statistics.cached_tokens for seed in (9, 10, 11)
    ]
    assert seen == [0, 0, 150]


@pytest.mark.parametrize("kind", ["ring", "trimmed, dspark", "hybrid"])
def test_c6_a_short_prompt_that_shares_less_than_was_read(engines, kind):
    """A ring that has wrapped is never cut by its logical length."""
    engine = engines(kind)
    forget(engine)
    turn = tokens(30, seed=12)
    both(engine, turn, "baseline")
    both(engine, [*turn[:20], *tokens(10, seed=13)], "baseline")


@pytest.mark.parametrize("kind", ["trimmed, dspark", "hybrid", "ring"])
def test_c8_an_answer_that_ends_inside_a_block_leaves_no_row_too_many(engines, kind):
    """A2 too: the stored record is as long as the caches, drafter's context included, and the next turn reuses it."""
    engine = engines(kind)
    for mode in engine.loaded.modes:
        prompt = tokens(40, seed=14)
        said = ask(engine, prompt, 12, mode, reuse=False).tokens
        for stop_at in range(2, min(len(said), 7)):
            forget(engine)
            eos = frozenset({said[stop_at]})
            target, plain = engine._pair.target, engine._pair.target.tokenizer.eos_token_ids
            target.tokenizer.eos_token_ids = set(eos)
            try:
                ended = ask(engine, prompt, 12, mode)
            finally:
                target.tokenizer.eos_token_ids = plain
            (slot,) = engine._prefix._slots
            assert slot.tokens == [*prompt, *ended.tokens][: len(slot.tokens)]
            assert slot.cache.length == len(slot.tokens)
            assert slot.context is None or slot.context.length == len(slot.tokens)
            warm, _ = both(engine, [*prompt, *ended.tokens, *tokens(6, seed=15)], mode)
            assert warm.statistics.cached_tokens >= len(prompt) - 1


@pytest.mark.parametrize("kind", ["trimmed, dspark", "hybrid", "ring", "kv-bits 8"])
def test_c9_whoever_hangs_up_leaves_a_slot_that_holds_what_was_read(engines, kind, monkeypatch):
    """In the first or second chunk of the prompt, or while it is answered."""
    monkeypatch.setattr(Engine, "_prefill_chunk", 64)
    engine = engines(kind)
    prompt = tokens(200, seed=16)
    for mode in engine.loaded.modes:
        for stop_after in (1, 3, 8):
            forget(engine)
            stream = engine.generate(Request(prompt, 30, speculation=SpeculationOptions(mode, cap=2)))
            for count, _ in enumerate(stream, 1):
                if count == stop_after:
                    break
            stream.close()
            for slot in engine._prefix._slots:
                assert slot.cache.length == len(slot.tokens)
                assert slot.context is None or slot.context.length == len(slot.tokens)
                assert slot.tokens == prompt[: len(slot.tokens)] or slot.tokens[:200] == prompt
            both(engine, prompt, mode)


@pytest.mark.parametrize("kind", ["trimmed, dspark", "hybrid", "ring"])
def test_c9_an_error_drops_the_slot_and_only_that(engines, kind):
    engine = engines(kind)
    forget(engine)
    prompt, other = tokens(60, seed=17), tokens(60, seed=18)
    ask(engine, prompt)
    ask(engine, other)
    layer = engine._pair.target.layers[1]
    plain, calls = type(layer), []

    def broken(module, *args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("device lost")
        return plain.__call__(module, *args, **kwargs)

    layer.__class__ = type(plain.__name__, (plain,), {"__call__": broken})
    events = []
    try:
        with pytest.raises(RuntimeError):
            events += engine.generate(Request([*prompt, *tokens(9, seed=19)], 20, speculation=PLAIN))
    finally:
        layer.__class__ = plain
    assert [slot.tokens[:60] for slot in engine._prefix._slots] == [other]
    assert engine.prefix_cache.report().dropped >= 1
    both(engine, [*prompt, *tokens(9, seed=19)], "auto")


def test_c17_another_beginning_is_a_miss_and_never_a_false_hit(engines):
    """Another reasoning effort or another list of tools renders another beginning."""
    engine = engines("trimmed, dspark")
    forget(engine)
    ask(engine, [5, *SYSTEM])
    warm, _ = both(engine, [6, *SYSTEM], "auto")
    assert warm.statistics.cached_tokens == 0
    assert engine.prefix_cache.report().last.outcome == "miss"


def test_c15_the_place_where_a_prompt_diverged_is_told(engines):
    engine = engines("trimmed, dspark")
    forget(engine)
    tools = tokens(90, seed=20)
    ask(engine, tools)
    permuted = [*tools[:33], *tools[60:], *tools[33:60]]
    both(engine, permuted, "auto")
    ask(engine, permuted[:12] + tools)
    assert engine.prefix_cache.report().last.shared_tokens == 12


@pytest.mark.parametrize("kind", ["trimmed, dspark", "hybrid"])
def test_c14_markers_of_many_sessions_on_one_system_prompt_never_mix(engines, kind):
    engine = engines(kind)
    forget(engine)
    prompts = [[*SYSTEM, *tokens(12, seed=100 + i)] for i in range(8)]
    alone = [ask(engine, prompt, reuse=False).tokens for prompt in prompts]
    for _ in range(2):
        for prompt, expected in zip(prompts, alone, strict=True):
            assert_same(engine, prompt, ask(engine, prompt).tokens, expected)


def test_generations_that_wait_and_one_that_runs_never_hold_the_same_cache(engines):
    engine = engines("trimmed, dspark")
    forget(engine)
    ask(engine, SYSTEM)
    first, second = (engine.start(Request([*SYSTEM, *tokens(5, seed=seed)], 8, speculation=PLAIN)) for seed in (21, 22))
    streams = [first.events(), second.events()]
    held = []
    for _ in range(6):
        for stream, decoding in zip(streams, (first, second), strict=True):
            next(stream, None)
            held.append(decoding.sequence.cache)
    assert first.sequence.cache is not second.sequence.cache
    for stream in streams:
        list(stream)
    caches = [slot.cache for slot in engine._prefix._slots]
    assert len({id(cache) for cache in caches}) == len(caches)


def test_d11_progress_starts_at_what_is_reused_and_is_done_on_every_way_out(engines):
    engine = engines("trimmed, dspark")
    forget(engine)
    prompt = tokens(300, seed=23)
    ask(engine, prompt[:200])
    progress = [e for e in engine.generate(Request(prompt, 4, speculation=PLAIN)) if isinstance(e, PrefillProgress)]
    assert (progress[0].processed, progress[0].total, progress[-1].done) == (200, 300, True)
    cancelled = list(engine.generate(Request(tokens(300, seed=24), 4, speculation=PLAIN, cancelled=lambda: True)))
    assert [e for e in cancelled if isinstance(e, PrefillProgress)][-1].done
    assert not [e for e in cancelled if isinstance(e, RoundCommitted)] and isinstance(cancelled[-1], Finished)
    target = engine._pair.target
    target.forward = lambda tokens, cache: 1 / 0
    heard = []
    try:
        with pytest.raises(ZeroDivisionError):
            for event in engine.generate(Request(tokens(300, seed=25), 4, speculation=PLAIN)):
                heard.append(event)
    finally:
        del target.forward
    assert heard[-1].done and heard[-1].processed == 0


def test_b14_what_measures_never_reuses(engines, monkeypatch):
    """A request that says so neither starts from what is kept nor leaves anything behind."""
    engine = engines("trimmed, dspark")
    forget(engine)
    ask(engine, SYSTEM)
    before = engine.prefix_cache.report()
    assert ask(engine, SYSTEM, reuse=False).statistics.cached_tokens == 0
    assert engine.prefix_cache.report() == before


def test_a_plain_turn_in_the_middle_keeps_what_the_drafter_knows(engines):
    """Modes that alternate share a conversation as far as the drafter's context reaches."""
    engine = engines("trimmed, dspark")
    forget(engine)
    said = ask(engine, SYSTEM, mode="dspark").tokens
    second = [*SYSTEM, *said, *tokens(10, seed=26)]
    plain, _ = both(engine, second, "baseline")
    assert plain.statistics.cached_tokens >= len(SYSTEM)
    drafted, cold = both(engine, [*second, *plain.tokens, 9], "dspark")
    assert len(SYSTEM) <= drafted.statistics.cached_tokens <= len(SYSTEM) + len(said)
    assert drafted.statistics.accept_len == cold.statistics.accept_len


@pytest.mark.parametrize("kind", ["hybrid", "ring", "trimmed, dspark"])
def test_c2_a_next_turn_that_renders_the_tail_otherwise_is_reused_up_to_there(engines, kind):
    """The boundary comes from probing the template; see test_boundaries."""
    engine = engines(kind)
    for mode in engine.loaded.modes:
        forget(engine)
        stable, tail = tokens(90, seed=27), [7, 8, 9]
        first, _ = both(engine, [*stable, *tail], mode, boundaries=(90,))
        followed, _ = both(engine, [*stable, 11, *first.tokens, *tokens(12, seed=28)], mode, boundaries=(95,))
        assert followed.statistics.cached_tokens == 90
        assert engine.prefix_cache.report().slots == 1, "one conversation, one slot"
