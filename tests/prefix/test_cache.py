"""Which conversations stay, which go, and what is told of them."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache
from prefix.pairs import ask, assert_same, forget, tokens
from test_plugging import Guess

from dspark.prefix import cache as module
from dspark.prefix.cache import PrefixCache
from dspark.prefix.lease import Lease
from dspark.prefix.options import PrefixOptions
from dspark.targets.caches import TargetCache

ROW_BYTES = 2 * 4


class Rows:
    """A model of one layer whose rows are the tokens."""

    layers = (None,)

    def make_cache(self):
        return [KVCache()]


def empty():
    return TargetCache(Rows().make_cache(), Rows())


def feed(cache, held):
    fed = mx.array([held], dtype=mx.float32)
    with cache.writing(fed):
        cache.entries[0].update_and_fetch(fed[None, :, :, None], fed[None, :, :, None])


def rows(cache):
    return [int(row) for row in cache.entries[0].keys_and_values()[0][0, 0, :, 0].tolist()]


class Desk:
    """Reads prompts through a prefix cache, as decoding does."""

    def __init__(self, **options):
        self.cache = PrefixCache(PrefixOptions(**options), mode="trim")

    def read(self, prompt):
        """How many tokens of `prompt` were not read again."""
        lease = self.cache.check_out(prompt, empty(), drafted=False, budget=0)
        held = lease.cache or empty()
        cached = held.length
        assert rows(held) == prompt[:cached] if cached else True
        feed(held, prompt[cached:])
        assert rows(held) == prompt
        self.cache.give_back(lease, list(prompt), held, None)
        return cached

    @property
    def kept(self):
        return [slot.tokens for slot in self.cache._slots]


def run(count, first=0):
    return list(range(first, first + count))


def test_a_conversation_that_goes_on_stays_one_slot():
    """C11: thirty turns that grow by 500 tokens."""
    desk, prompt = Desk(), run(500)
    for turn in range(30):
        assert desk.read(prompt) == (0 if turn == 0 else len(prompt) - 500)
        prompt = [*prompt, *run(500, 1000 * turn)]
    assert len(desk.kept) == 1


def test_the_same_prompt_reads_its_last_token_again():
    desk = Desk()
    desk.read(run(300))
    assert desk.read(run(300)) == 299
    assert len(desk.kept) == 1


def test_another_session_takes_the_beginning_along_and_leaves_the_first_as_it_is():
    desk = Desk()
    first, second = [*run(300), *run(200, 1000)], [*run(300), *run(200, 2000)]
    desk.read(first)
    assert desk.read(second) == 300
    assert sorted(desk.kept) == sorted([first, second])
    assert desk.read(first) == 499


def test_the_least_recently_used_goes_first():
    desk = Desk(slots=2)
    one, two, three = (run(300, 1000 * i) for i in range(3))
    desk.read(one)
    desk.read(two)
    desk.read(one)
    desk.read(three)
    assert desk.kept == [one, three]
    assert desk.cache.report().evicted == 1


def test_tiny_prompts_do_not_push_out_long_ones(monkeypatch):
    monkeypatch.setattr(module, "TINY_TOKENS", 256)
    desk = Desk(slots=2)
    long = run(1000, 5000)
    desk.read(long)
    for i in range(6):
        desk.read(run(30, 100 * i))
    assert long in desk.kept and len(desk.kept) == 2


def test_c11_the_byte_bound_holds_and_has_a_default():
    assert 0 < Desk().cache.report().limit_bytes < 1 << 50
    desk = Desk(limit_bytes=3 * 1024 * ROW_BYTES)
    for i in range(12):
        desk.read(run(1000, 10_000 * i))
        assert desk.cache.report().bytes <= 3 * 1024 * ROW_BYTES
    assert len(desk.kept) == 3
    desk.read(run(9000))
    assert run(9000) not in desk.kept, "what is too large alone is not kept"


def test_shedding_gives_back_the_oldest_first():
    desk = Desk()
    for i in range(3):
        desk.read(run(1000, 10_000 * i))
    before = desk.cache.report().bytes
    freed = desk.cache.shed(1)
    assert freed > 0 and desk.cache.report().bytes == before - freed
    assert desk.kept == [run(1000, 10_000), run(1000, 20_000)]
    assert desk.cache.shed("older") > 0 and desk.kept == [run(1000, 20_000)]
    assert desk.cache.shed("all") > 0 and desk.kept == []
    assert desk.cache.shed("all") == 0


def test_shedding_rungs_keeps_conversations(home):
    engine = home.engine("hybrid", rung_tokens=16)
    prompt = tokens(120)
    said = ask(engine, prompt).tokens
    held = engine.prefix_cache.report()
    assert held.checkpoints > 3
    assert engine.prefix_cache.shed("rungs") == held.bytes - engine.prefix_cache.report().bytes > 0
    assert engine.prefix_cache.report().checkpoints == 1
    warm = ask(engine, prompt)
    assert warm.statistics.cached_tokens == 119
    assert_same(engine, prompt, warm.tokens, said)


def test_checkpoints_of_a_long_conversation_do_not_pile_up(home):
    engine = home.engine("hybrid", rung_tokens=0)
    prompt = tokens(30)
    for turn in range(12):
        prompt = [*prompt, *ask(engine, prompt, 4).tokens, *tokens(10, seed=turn)]
    assert engine.prefix_cache.report().checkpoints <= 4


def test_visits_are_counted_by_what_they_found():
    desk = Desk()
    desk.read([*run(300), *run(100, 1000)])
    desk.read([*run(300), *run(100, 1000), 7, 8])
    desk.read([*run(300), *run(100, 2000)])
    report = desk.cache.report()
    assert (report.misses, report.hits, report.partials) == (1, 1, 1)
    assert (report.last.outcome, report.last.shared_tokens, report.last.cached_tokens) == ("partial", 300, 300)
    assert (report.reused_tokens, report.read_tokens) == (700, 400 + 2 + 100)


def test_a13_a_kept_cache_that_does_not_give_back_what_is_asked_is_dropped_and_read_anew(monkeypatch, caplog):
    desk = Desk()
    desk.read(run(300))
    monkeypatch.setattr(KVCache, "trim", lambda self, count: 0)
    assert desk.read(run(200)) == 0
    assert desk.cache.report().dropped == 1 and len(desk.kept) == 1
    assert "gave back 0 of" in caplog.text


def test_an_empty_record_is_not_kept():
    desk = Desk()
    desk.cache.give_back(Lease(), [], empty(), None)
    assert desk.kept == []


def test_switched_off_nothing_is_kept(home):
    engine = home.engine("trimmed, dspark", enabled=False)
    for _ in range(2):
        assert ask(engine, tokens(40)).statistics.cached_tokens == 0
    assert (engine.prefix_cache.report().mode, engine.prefix_cache.report().slots) == ("off", 0)


def test_a_model_whose_cache_cannot_go_back_says_that_nothing_is_kept(home, monkeypatch):
    """C5: no silent loss."""
    from dspark.targets import rewind

    kinds = tuple(kind for kind in rewind._KINDS if kind[0].__name__ != "RotatingKVCache")
    monkeypatch.setattr(rewind, "_KINDS", kinds)
    engine = home.engine("ring")
    report = engine.prefix_cache.report()
    assert report.mode == "off" and report.reason
    assert any(note.startswith("reads every prompt") and report.reason in note for note in engine.loaded.notes)
    assert [ask(engine, tokens(40)).statistics.cached_tokens for _ in range(2)] == [0, 0]


def test_a_new_drafter_or_model_starts_with_nothing(home):
    engine = home.engine("trimmed, dspark")
    ask(engine, tokens(40))
    engine.plug(Guess([5, 9]))
    assert ask(engine, tokens(40)).statistics.cached_tokens == 0
    forget(engine)


@pytest.mark.parametrize("taps", [(), (0,)])
def test_a_drafter_of_ones_own_is_taken_along(home, taps):
    """Its context is asked to forget rows and nothing else, so that a conversation goes on; it is not shared."""
    engine = home.engine("trimmed, dspark")
    engine.plug(Guess([5, 9], taps))
    prompt = tokens(40)
    said = ask(engine, prompt).tokens
    followed = [*prompt, *said, *tokens(10, seed=1)]
    warm = ask(engine, followed)
    assert warm.statistics.cached_tokens >= 40
    assert_same(engine, followed, warm.tokens, ask(engine, followed, reuse=False).tokens)
