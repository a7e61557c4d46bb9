"""Targets: taps that leave the model alone, caches that roll back exactly, loads that refuse what is broken."""

import copy

import mlx.core as mx
import pytest
from families import FAMILIES, family
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)
from tiny import write_llama

from dspark.errors import CheckpointError, PairingError, RollbackError
from dspark.targets.caches import TargetCache
from dspark.targets.probe import probe_taps, rollback_refusal
from dspark.targets.target import Target


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return Target.load(write_llama(tmp_path_factory.mktemp("models") / "llama"))


TOKENS = [5, 9, 33, 7, 40, 12, 3]


def test_taps_are_the_residual_stream_behind_each_layer(target):
    """M2, A34: computed by hand from the model's own parts."""
    model = target.model.model
    hidden = model.embed_tokens(mx.array([TOKENS]))
    expected = [hidden]
    for layer in model.layers:
        hidden = layer(hidden, "causal", None)
        expected.append(hidden)
    target.tap((-1, 0, 3))
    _, rows = target.forward(mx.array([TOKENS]), target.new_cache())
    joined = mx.concatenate([expected[0], expected[1], expected[4]], axis=-1)
    assert mx.allclose(rows, joined, atol=1e-5).item()


def test_tapping_leaves_the_model_as_mlx_lm_made_it(target):
    before = [type(layer) for layer in target.layers]
    plain = target.model(mx.array([TOKENS]))
    target.tap((0, 2))
    tapped, _ = target.forward(mx.array([TOKENS]), target.new_cache())
    assert mx.array_equal(plain, tapped).item()
    assert [type(layer) for layer in target.layers] == before
    layer = target.layers[0]
    call, type(layer).__call__ = (
        type(layer).__call__,
        lambda *a, **k: (_ for _ in ()).throw(RuntimeError("out of memory")),
    )
    try:
        target.tap((0,))
        with pytest.raises(RuntimeError):
            target.forward(mx.array([TOKENS]), target.new_cache())
    finally:
        type(layer).__call__ = call
        target.tap(())
    assert [type(layer) for layer in target.layers] == before


def test_a_rolled_back_cache_equals_one_that_never_saw_it(target):
    for keep in range(1, 7):
        cache = target.new_cache()
        target.forward(mx.array([TOKENS]), cache)
        cache.truncate(keep)
        after, _ = target.forward(mx.array([[4, 8]]), cache)
        clean = target.new_cache()
        target.forward(mx.array([TOKENS[:keep]]), clean)
        expected, _ = target.forward(mx.array([[4, 8]]), clean)
        assert cache.length == clean.length == keep + 2
        assert mx.allclose(after, expected, atol=1e-4).item()


class Liar(KVCache):
    """A13: says it can trim and does not, or clears everything."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def trim(self, n):
        return self.answer


def test_a_trim_that_does_not_do_what_it_says_is_caught():
    entry = Liar(0)
    entry.offset = 5
    cache = TargetCache([entry])
    cache.length = 5
    with pytest.raises(RollbackError, match="Liar gave back 0 of 3"):
        cache.truncate(2)


class Foreign:
    """A cache class of nobody's."""


def test_caches_without_an_exact_rollback_are_refused_by_name():
    for entries in ([KVCache(), Foreign()], [CacheList(ArraysCache(2), Foreign())]):
        assert "Foreign" in TargetCache(entries).rollback_refusal
    known = [KVCache(), QuantizedKVCache(), RotatingKVCache(8), ChunkedKVCache(8), ConcatenateKVCache(), ArraysCache(2)]
    assert TargetCache([*known, CacheList(*known)]).rollback_refusal is None


def test_the_rollback_probe_passes_on_a_sound_model_and_fails_on_a_leaky_one(target, monkeypatch):
    assert rollback_refusal(target) is None
    monkeypatch.setattr(KVCache, "trim", lambda self, n: n)
    assert "traces" in rollback_refusal(target)


@pytest.mark.parametrize("taps", [(), (2, 1), (1, 1), (-2, 0), (0, 5), (0, 99)])
def test_taps_that_cannot_be_are_refused(target, taps):
    with pytest.raises(PairingError, match="taps layers"):
        probe_taps(target, taps, 32)


def test_taps_of_another_width_are_refused(target):
    with pytest.raises(PairingError, match="wrong pairing"):
        probe_taps(target, (0, 2), 48)
    probe_taps(target, (0, 2), 32)


def test_broken_folders_are_refused_in_one_line(tmp_path):
    folder = write_llama(tmp_path / "m")
    data = (folder / "model.safetensors").read_bytes()
    for breakage in ("truncated", "config", "weights"):
        if breakage == "truncated":
            (folder / "model.safetensors").write_bytes(data[:1000])
        elif breakage == "config":
            (folder / "config.json").write_text("{")
        else:
            (folder / "model.safetensors").unlink()
            write_llama(folder)
            (folder / "model.safetensors").unlink()
        with pytest.raises(CheckpointError) as refusal:
            Target.load(folder)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_tells_its_sizes(name):
    known = family(name)
    assert (known.vocabulary, known.hidden_size, known.context_window) == (64, 32, 512)
    assert known.embedding(mx.array([[0]])).dtype == mx.float32
    assert known.depth == (6 if name in ("nanbeige", "gemma4_text") else len(known.layers))


def test_taps_count_the_passes_of_a_looped_model():
    """A34: tap ids run over the unrolled stack, and the norm between passes belongs to the last layer of a pass."""
    target = copy.copy(family("nanbeige"))
    model = target.model.model
    hidden = model.embed_tokens(mx.array([TOKENS]))
    entering = []
    for _ in range(2):
        for layer in model.layers:
            entering.append(hidden)
            hidden = layer(hidden, "causal", None)
        hidden = model.norm(hidden)
    assert target.depth == len(entering) == 6
    target.tap((-1, 1, 2, 4))
    _, rows = target.forward(mx.array([TOKENS]), target.new_cache())
    expected = mx.concatenate([entering[i + 1] for i in (-1, 1, 2, 4)], axis=-1)
    assert mx.allclose(rows, expected, atol=1e-4).item()


def test_a_model_that_does_not_call_its_layers_has_no_taps():
    target = copy.copy(family("iquestloopcoder"))
    target.tap((0, 1))
    with pytest.raises(PairingError, match="leave the drafter out"):
        target.forward(mx.array([TOKENS]), target.new_cache())


def test_a_cache_that_fails_in_the_probe_is_a_reason_and_no_crash(target, monkeypatch):
    monkeypatch.setattr(KVCache, "trim", lambda self, n: 0)
    assert "gave back 0" in rollback_refusal(target)


def test_the_head_is_looked_for_once(monkeypatch):
    """A walk over all modules in every round is milliseconds of host work."""
    target, rows = family("llama"), mx.zeros((1, 1, 32))
    expected = target.head(rows)
    monkeypatch.setattr(type(target.model), "named_modules", lambda model: 1 / 0)
    assert mx.array_equal(target.head(rows), expected)
