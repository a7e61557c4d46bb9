"""Quantized keys and values: in full-attention layers only, as mlx-lm makes them, and refused where they fail."""

import mlx.core as mx
import pytest
from families import WINDOW, family
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache
from tiny import write_llama

from dspark.engine import Engine, LoadOptions
from dspark.errors import PairingError, UsageError
from dspark.targets.caches import KVBits
from dspark.targets.probe import probe_kv_bits
from dspark.targets.target import Target


def test_rings_beside_quantized_layers_stay_bounded():
    """A31."""
    target = family("gemma3_text", 8)
    cache = target.new_cache()
    for _ in range(3 * WINDOW):
        target.forward(mx.array([[5]]), cache)
    assert {type(entry) for entry in cache.entries} == {QuantizedKVCache, RotatingKVCache}
    for entry in cache.entries:
        if isinstance(entry, RotatingKVCache):
            assert entry.keys.shape[2] <= WINDOW
        else:
            assert entry.bits == 8 and entry.offset == 3 * WINDOW


def test_they_are_quantized_after_the_first_forward_and_can_be_taken_back_from_there():
    target = family("llama", 4)
    cache = target.new_cache()
    assert {type(entry) for entry in cache.entries} == {KVCache}
    target.forward(mx.array([[5, 6, 7, 8]]), cache)
    assert {type(entry) for entry in cache.entries} == {QuantizedKVCache}
    cache.truncate(1)
    assert [entry.offset for entry in cache.entries] == [1] * len(cache.entries)


def test_attention_that_cannot_read_them_is_refused():
    for name in ("llama", "deepseek_v3"):  # heads of 8 features; latent attention
        known = family(name)
        target = Target(known.model, known.tokenizer, known.config, known.path, kv_bits=KVBits(4))
        with pytest.raises(PairingError, match="leave the KV bits out"):
            probe_kv_bits(target)


def test_the_engine_takes_kv_bits(tmp_path):
    folder = str(write_llama(tmp_path / "m", head_dim=32))
    engine = Engine()
    assert engine.load(LoadOptions(model=folder, drafter="none", kv_bits=8)).modes == ("baseline", "lookup")
    with pytest.raises(UsageError, match="4 or 8"):
        engine.load(LoadOptions(model=folder, kv_bits=3))
