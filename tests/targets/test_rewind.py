"""Taking rows back from each cache class of mlx-lm, at every place and width, against caches that never saw them."""

import random

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from dspark.errors import RollbackError
from dspark.targets.caches import TargetCache

W = 8


class Attention:
    """Writes tokens as keys and returns what a query could see: the rows that attention really reads."""

    @staticmethod
    def write(entry, tokens):
        rows = mx.broadcast_to(mx.array(tokens, dtype=mx.float32)[None, None, :, None], (1, 1, len(tokens), 64))
        if isinstance(entry, ChunkedKVCache):
            entry.maybe_trim_front()
        if isinstance(entry, ArraysCache):
            state = entry[0] if entry[0] is not None else mx.zeros(1)
            for token in tokens:
                state = state * 0.5 + token
            entry[0] = state
            return
        entry.update_and_fetch(rows, rows)

    @staticmethod
    def seen(entry, token):
        """What the next token would attend to, itself included, oldest first."""
        if isinstance(entry, ArraysCache):
            return [] if entry[0] is None else [round(entry[0].item(), 4)]
        at = entry.offset
        Attention.write(entry, [token])
        keys = entry.keys
        if isinstance(entry, QuantizedKVCache):
            keys = mx.dequantize(*keys, entry.group_size, entry.bits)
        if isinstance(entry, RotatingKVCache):
            return sorted(round(v) for v in entry.keys_and_values()[0][0, 0, :, 0].tolist())
        if isinstance(entry, ChunkedKVCache):
            chunk_start = at - at % W - entry.start_position
            return [round(v) for v in keys[0, 0, chunk_start : at + 1 - entry.start_position, 0].tolist()]
        return [round(v) for v in keys[0, 0, : at + 1, 0].tolist()]


class Model:
    """Enough of a model for a cache to be emptied and replayed through."""

    def __init__(self, make):
        self.make = make
        self.layers = [None]

    def make_cache(self):
        return self.make()

    def __call__(self, tokens, cache):
        for entry in cache:
            for leaf in entry.caches if isinstance(entry, CacheList) else [entry]:
                Attention.write(leaf, tokens[0].tolist())


MAKERS = {
    "KVCache": lambda: [KVCache()],
    "QuantizedKVCache": lambda: [QuantizedKVCache(group_size=64, bits=8)],
    "ConcatenateKVCache": lambda: [ConcatenateKVCache()],
    "ChunkedKVCache": lambda: [ChunkedKVCache(W)],
    "RotatingKVCache": lambda: [RotatingKVCache(W)],
    "ArraysCache": lambda: [ArraysCache(1)],
    "mixed": lambda: [
        CacheList(ArraysCache(1), KVCache()),
        RotatingKVCache(W),
        CacheList(RotatingKVCache(W), KVCache()),
    ],
}


def feed(model, held, tokens):
    array = mx.array([tokens])
    with held.writing(array):
        model(array, cache=held.entries)


def leaves_of(held):
    return [leaf for e in held.entries for leaf in (e.caches if isinstance(e, CacheList) else [e])]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("seed", range(6))
def test_any_walk_of_writes_and_truncations_sees_what_a_cold_cache_sees(name, seed):
    """X7, A14: blocks and single rows, before, at and behind the wrap; every cut inside the newest forward is exact."""
    rng, model = random.Random(seed), Model(MAKERS[name])
    held, record = TargetCache(model.make_cache(), model), []
    for step in range(40):
        width = rng.choice([1, 1, 1, 2, 3, 5, W, W + 3])
        start, tokens = len(record), [step * 16 % 97 + k for k in range(width)]
        feed(model, held, tokens)
        kept = rng.choice([width, width, rng.randint(0, width)])
        again = rng.randint(0, kept)  # an answer may end inside the accepted rows
        for cut in (kept, again) if rng.random() < 0.3 else (kept,):
            held.truncate(start + cut)
            record = (record + tokens)[: start + cut] if cut == kept else record[: start + cut]
            assert held.length == len(record)
        if step % 5 == seed % 5:
            expected = TargetCache(model.make_cache(), model)
            for token in record:
                feed(model, expected, [token])
            probe = [Attention.seen(leaf, 999) for leaf in leaves_of(held)]
            assert probe == [Attention.seen(leaf, 999) for leaf in leaves_of(expected)]
            # Looking wrote a row, so go on from a fresh cache of the same history.
            held = TargetCache(model.make_cache(), model)
            if record:
                feed(model, held, record)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("before", [0, 5, W, 2 * W + 3])
def test_a_forward_that_failed_half_way_leaves_nothing(name, width, before):
    """Some caches written, others not: all of them are as before it."""
    model = Model(MAKERS[name])
    held = TargetCache(model.make_cache(), model)
    history = list(range(1, before + 1))
    for token in history:
        feed(model, held, [token])
    tokens = mx.array([[50 + k for k in range(width)]])
    with pytest.raises(RuntimeError, match="lost"), held.writing(tokens):
        Attention.write(leaves_of(held)[0], tokens[0].tolist())
        raise RuntimeError("device lost")
    held.truncate(before)
    assert held.length == before
    expected = TargetCache(model.make_cache(), model)
    for token in history:
        feed(model, expected, [token])
    assert [Attention.seen(leaf, 9) for leaf in leaves_of(held)] == [
        Attention.seen(leaf, 9) for leaf in leaves_of(expected)
    ]


@pytest.mark.parametrize("name", ["RotatingKVCache", "ArraysCache", "mixed"])
def test_what_is_forgotten_is_emptied_and_never_left_wrong(name):
    """A recurrent state and a wrapped ring know one forward back; a stop string may want more."""
    model = Model(MAKERS[name])
    held = TargetCache(model.make_cache(), model)
    for token in range(2 * W):
        feed(model, held, [token])
    held.truncate(2 * W - 3)
    assert held.length == 0 and all(leaf.empty() for leaf in leaves_of(held))
    feed(model, held, [1, 2, 3])
    assert held.length == 3


def test_rings_and_kv_caches_that_hold_everything_go_back_to_any_length():
    model = Model(lambda: [RotatingKVCache(W), KVCache(), ChunkedKVCache(W)])
    held = TargetCache(model.make_cache(), model)
    for token in range(1, W):
        feed(model, held, [token])
    for length in (5, 2, 0):
        held.truncate(length)
        assert held.length == length and [e.offset for e in held.entries] == [length] * 3


def test_a_ring_that_went_back_to_just_a_window_knows_that_its_first_row_is_gone():
    """A plain step fed ahead of an answer that ends at the window: to whoever asks later this is no whole beginning."""
    model = Model(lambda: [RotatingKVCache(W)])
    held = TargetCache(model.make_cache(), model)
    for token in range(W + 1):
        feed(model, held, [token])
    assert not held.anywhere
    held.truncate(W)
    assert held.length == W and not held.anywhere, "row 0 was overwritten by row 8"
    held.truncate(W - 1)
    assert held.length == 0, "what cannot be cut is emptied"


def test_stock_trim_is_what_these_classes_exist_for():
    """Negative controls: mlx-lm's own trim leaves stale rows in a full ring and behind a concatenated cache."""
    ring, joined = RotatingKVCache(W), ConcatenateKVCache()
    for entry in (ring, joined):
        Attention.write(entry, list(range(1, 11)))
        Attention.write(entry, [90, 91, 92, 93])
        entry.trim(3)
        entry.update_and_fetch(mx.ones((1, 1, 1, 64)), mx.ones((1, 1, 1, 64)))
        assert any(row in (91, 92, 93) for row in entry.keys[0, 0, :, 0].tolist())


def test_a_cache_without_a_model_says_so_instead_of_guessing():
    held = TargetCache([ArraysCache(1)])
    tokens = mx.array([[1, 2, 3]])
    with held.writing(tokens):
        Attention.write(held.entries[0], [1, 2, 3])
    with pytest.raises(RollbackError, match="no model"):
        held.truncate(2)
