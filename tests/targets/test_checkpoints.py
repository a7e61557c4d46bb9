"""Checkpoints and forks of each cache class: exact however long ago they were made, and of nobody else's concern."""

import random

import mlx.core as mx
import pytest
from targets.test_rewind import MAKERS, Attention, Model, feed, leaves_of

from dspark.targets.caches import TargetCache

TRIMMED = {"KVCache", "QuantizedKVCache", "ConcatenateKVCache"}


def held_by(name, record, widths=None):
    """A cache that read `record`, in pieces of random widths or one by one."""
    model = Model(MAKERS[name])
    held = TargetCache(model.make_cache(), model)
    at = 0
    while at < len(record):
        width = widths.choice([1, 1, 2, 5, 9]) if widths else 1
        feed(model, held, record[at : at + width])
        at += width
    return model, held


def seen(held):
    """What the next token would see; looking writes a row, so a fork looks."""
    assert held.length, "an empty cache sees nothing"
    fork = held.fork(held.length)
    return [Attention.seen(leaf, 999) for leaf in leaves_of(fork)]


def cold(name, record):
    return seen(held_by(name, record)[1])


def test_a_write_into_a_slice_changes_every_holder_of_that_array_and_no_other_handle():
    """What all of this rests on. MLX's arrays are values, but a Python object that is written into is a variable."""
    import copy

    array = mx.zeros(3)
    same, other = array, copy.copy(array)
    array[0] = 1.0
    assert (same[0].item(), other[0].item()) == (1.0, 0.0)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("seed", range(3))
def test_going_back_far_is_exact_and_can_be_repeated(name, seed):
    """C18."""
    rng = random.Random(seed)
    record = [rng.randrange(90) for _ in range(20)]
    model, held = held_by(name, record[:12], rng)
    held.checkpoint("rung")
    for attempt in range(3):
        tail = [rng.randrange(90) for _ in range(rng.choice([1, 4, 20]))]
        for token in tail:
            feed(model, held, [token])
        feed(model, held, [1, 2, 3])
        reach = held.reach(14)
        assert reach == (14 if name in TRIMMED else 12)
        held.truncate(reach)
        assert held.length == reach
        assert seen(held) == cold(name, [*record[:12], *tail, 1, 2, 3][:reach]), attempt
        held.truncate(12)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("length", [3, 8, 12, 30])
def test_neither_a_fork_nor_its_origin_sees_what_the_other_writes(name, length):
    record = list(range(30))
    model, held = held_by(name, record[:12])
    held.checkpoint("stable")
    for token in record[12:]:
        feed(model, held, [token])
    before = seen(held)
    fork = held.fork(length)
    assert fork.length == held.reach(length)
    for token in range(60, 75):
        feed(model, fork, [token])
        feed(model, held, [token + 15])
    assert seen(held) == cold(name, [*record, *range(75, 90)])
    assert seen(fork) == cold(name, [*record[: fork.length - 15], *range(60, 75)])
    held.truncate(held.reach(12))
    assert held.length == 12 and seen(held) == cold(name, record[:12])
    assert before == cold(name, record)


@pytest.mark.parametrize("name", MAKERS)
def test_without_a_checkpoint_on_the_way_nothing_is_left_rather_than_something_wrong(name):
    _, held = held_by(name, list(range(40)))
    assert held.reach(20) == (20 if name in TRIMMED else 0)
    held.truncate(20)
    assert held.length == (20 if name in TRIMMED else 0)


def test_a_ring_keeps_no_more_than_its_window_in_a_checkpoint():
    model, held = held_by("RotatingKVCache", list(range(5)))
    feed(model, held, list(range(100)))
    rows = held.entries[0].keys.shape[2]
    held.checkpoint("rung")
    (kept,) = held.checkpoints
    assert rows > 100 and kept.states[0]["keys"].shape[2] == 8
    feed(model, held, [7])
    held.truncate(105)
    assert held.length == 105 and seen(held) == cold("RotatingKVCache", [*range(5), *range(100)])


def test_checkpoints_behind_a_cut_are_gone():
    model, held = held_by("ArraysCache", list(range(5)))
    held.checkpoint("rung")
    feed(model, held, [5, 6])
    held.checkpoint("rung")
    held.checkpoint("rung")
    assert [one.length for one in held.checkpoints] == [5, 7]
    held.truncate(5)
    feed(model, held, [8, 9])
    assert [one.length for one in held.checkpoints] == [5]
