"""Attention in chunks of queries: the same sums, wherever a trial wants them, and nothing else touched."""

from dataclasses import replace

import mlx.core as mx
import pytest
from families import WINDOW, family
from mlx_lm.models import base, llama
from mlx_lm.models.base import create_causal_mask
from tiny import write_llama

from dspark import pair
from dspark.decoding.events import Finished
from dspark.decoding.request import Request, SpeculationOptions
from dspark.decoding.verdict import Answer, compare
from dspark.engine import Engine, LoadOptions
from dspark.targets import attention
from dspark.targets.attention import Pass, SplitAttention
from dspark.targets.target import Target


@pytest.fixture(autouse=True)
def _any_depth(monkeypatch):
    monkeypatch.setattr(attention, "_LEAST_KEYS", 1)


def a_pass(heads, kv_heads, width, depth, mask=None, dtype=mx.float32, batch=1):
    key = mx.random.key(heads + 100 * width + depth)
    shapes = ((batch, heads, width, 16), (batch, kv_heads, depth, 16), (batch, kv_heads, depth, 24))
    q, k, v = (
        mx.random.normal(shape, dtype, key=one) for shape, one in zip(shapes, mx.random.split(key, 3), strict=True)
    )
    return Pass(q, k, v, None, 0.25, mask)


def masks(width, depth):
    causal = create_causal_mask(width, depth - width)
    return {
        "causal": "causal",
        "none": None,
        "two axes": causal,
        "four axes": causal[None, None],
        "window": create_causal_mask(width, depth - width, window_size=5),
        "added": mx.where(causal, 0.0, -1e9)[None, None],
        "one row for all": mx.arange(depth)[None, None, None] < depth - 2,
    }


@pytest.mark.parametrize("kind", masks(2, 4))
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 1), (16, 2), (32, 1)])
def test_chunks_say_what_the_whole_says(kind, heads, kv_heads):
    for width, depth in ((2, 2), (5, 9), (9, 40), (33, 33), (17, 100)):
        one = a_pass(heads, kv_heads, width, depth, masks(width, depth)[kind], batch=2 if width == 5 else 1)
        assert mx.allclose(one.whole(), one.split(), rtol=1e-5, atol=1e-6)


def test_a_chunk_is_what_the_kernel_takes():
    """8 queries at most, 32 counted over the heads that share a key."""
    assert [a_pass(heads, 1, 9, 9).chunk for heads in (1, 4, 5, 8, 16, 32, 64)] == [8, 8, 6, 4, 2, 1, 0]


def forced(target, answer=True):
    """`target` with every trial answered alike; the list tells what was tried."""
    tried = []

    def pays(one):
        tried.append(one.kind)
        return answer

    target.attention = SplitAttention(target.model, pays)
    return tried


def text(count, start=0):
    return mx.array([[(7 * i + 5) % 60 + 3 for i in range(start, start + count)]], dtype=mx.int32)


def passes(target, before, width, monkeypatch):
    """Logits of the second of two equal blocks behind `before` tokens, and how many of its layers went in chunks."""
    cache, counted, split = target.new_cache(), [], Pass.split
    with monkeypatch.context() as patch:
        patch.setattr(Pass, "split", lambda one: counted.append(1) or split(one))
        for at in range(0, before, 100):
            target.forward(text(min(100, before - at), at), cache)
        target.forward(text(width, before), cache)
        cache.truncate(before)
        counted.clear()
        return target.forward(text(width, before), cache)[0], len(counted)


# Model type → layers that can go in chunks: gpt_oss has sinks, a quarter of qwen3_5 is attention.
REACHED = {"llama": 3, "gemma3_text": 4, "llama4": 4, "deepseek_v3": 3, "gpt_oss": 0, "qwen3_5": 1, "afm7": 3}


@pytest.mark.parametrize("name", REACHED)
@pytest.mark.parametrize("before", [3, 2 * WINDOW + 1, 120])
def test_a_model_says_the_same(name, before, monkeypatch):
    """Plain caches, rings before and behind their wrap, chunks, compressed keys, sinks, recurrent layers beside."""
    target = family(name)
    try:
        whole, none = passes(target, before, 20, monkeypatch)
        forced(target)
        split, layers = passes(target, before, 20, monkeypatch)
    finally:
        target.attention = None
    assert none == 0 and layers == REACHED[name]
    assert mx.allclose(whole, split, rtol=1e-4, atol=1e-4)


def test_quantized_keys_are_left_alone():
    target = family("gemma3_text", 8)
    try:
        tried = forced(target)
        cache = target.new_cache()
        for width in (1, 40, 20):
            target.forward(text(width), cache)
    finally:
        target.attention = None
    assert [(kind[3], kind[-2]) for kind in tried] == [(40, (mx.bool_, ())), (20, (mx.bool_, ()))], "the rings alone"


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = write_llama(
        tmp_path_factory.mktemp("shared") / "m", num_attention_heads=16, num_key_value_heads=1, num_hidden_layers=2
    )
    return Target.load(folder)


def test_each_kind_of_pass_is_tried_once_behind_the_pass_that_met_it(target):
    tried = forced(target)
    cache = target.new_cache()
    for width in (40, 1, 3, 3, 5, 3, 2, 100):
        target.forward(text(width), cache)
    rows = [(kind[3], kind[-1]) for kind in tried]
    assert rows == [(40, 6), (3, 6), (5, 6)], "one row, two rows and a prompt's chunk need no trial"
    target.forward(text(3), cache)
    assert (tried[-1][3], tried[-1][-1]) == (3, 8), "another depth is another kind"


def test_a_shallow_context_is_not_tried(target, monkeypatch):
    monkeypatch.undo()
    tried = forced(target)
    target.forward(text(20), target.new_cache())
    assert tried == []


def test_outside_of_a_pass_the_library_is_as_it_was(target):
    forced(target)
    cache = target.new_cache()
    seen = []
    plain = type(target.layers[0]).__call__

    def broken(module, *args, **kwargs):
        seen.append(llama.scaled_dot_product_attention is base.scaled_dot_product_attention)
        raise RuntimeError("device lost")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(type(target.layers[0]), "__call__", broken)
        target.forward(text(20), cache)
    assert seen == [False]
    assert llama.scaled_dot_product_attention is base.scaled_dot_product_attention
    assert type(target.layers[0]).__call__ is plain
    cache.truncate(0)
    target.forward(text(20), cache)
    assert llama.scaled_dot_product_attention is base.scaled_dot_product_attention


SHAPES = {
    "eight to one": {"num_attention_heads": 8, "num_key_value_heads": 1},
    "sixteen to one": {"num_attention_heads": 16, "num_key_value_heads": 1},
    "two groups of sixteen": {"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 4},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_answers_are_those_of_plain_decoding(shape, tmp_path, monkeypatch):
    monkeypatch.setattr(pair, "split_pays", lambda one: True)
    folder = write_llama(tmp_path / "m", max_position_embeddings=1024, **SHAPES[shape])
    engine, chunked, split = Engine(), [], Pass.split
    monkeypatch.setattr(Pass, "split", lambda one: chunked.append(1) or split(one))
    engine.load(LoadOptions(str(folder), "none", sdpa_split=True))
    assert engine.loaded.sdpa_split
    for depth in (5, 70, 400):
        prompt = text(depth)[0].tolist()
        plain = answer(engine, prompt, SpeculationOptions("baseline"))
        for cap in (4, 12):
            found = answer(engine, prompt, SpeculationOptions("lookup", cap))
            verdict = compare(
                plain,
                found,
                dtype="float32",
                eos=engine.loaded.eos,
                top_two=lambda shared, prompt=prompt: engine.top_two([*prompt, *shared]),
            )
            assert verdict.outcome in ("identical", "tied")
    assert chunked, "nothing was read in chunks"


def answer(engine, prompt, speculation):
    *_, last = engine.generate(Request(prompt, 24, speculation=speculation, reuse=False))
    assert isinstance(last, Finished)
    return Answer(last.tokens, last.reason == "stop")


def test_off_on_and_by_itself(tmp_path):
    """By itself only on Metal; what is asked for is part of what a calibration belongs to."""
    options = LoadOptions(str(write_llama(tmp_path / "m")), "none")
    keys = []
    for wanted, held in ((None, pair.on_metal()), (False, False), (True, True)):
        engine = Engine()
        loaded = engine.load(replace(options, sdpa_split=wanted))
        assert loaded.sdpa_split is held and (engine._pair.target.attention is not None) is held
        keys.append(engine._pair.key.digest)
    assert len(set(keys)) == 3


def test_a_model_whose_attention_is_its_own_says_that_it_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(llama, "scaled_dot_product_attention", lambda *args, **kwargs: None)
    monkeypatch.setattr(pair, "rollback_refusal", lambda target: "asked by a test")
    monkeypatch.setattr(Target, "check", lambda target: None)
    notes = []
    model = Target.load(write_llama(tmp_path / "m"))
    pair._split_attention(model, True, notes)
    assert model.attention is None and "does nothing" in notes[0]
