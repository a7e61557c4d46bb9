"""What a context takes, against the bytes of caches that really hold one."""

import mlx.core as mx
import pytest
from families import family
from mlx.utils import tree_flatten

from dspark.targets.footprint import CacheFootprint, bytes_per_token, cache_footprint
from dspark.targets.target import Target


def held_bytes(target: Target, tokens: int) -> int:
    """What a cache really holds after decoding `tokens` one at a time, as a long answer does."""
    cache = target.new_cache()
    target.tap(())
    target.forward(mx.array([[3] * 32]), cache)
    for _ in range(tokens - 32):
        target.forward(mx.array([[5]]), cache)
        mx.eval(cache.arrays)
    return sum(array.nbytes for array in cache.arrays)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next", "falcon_h1"])
def test_a_context_takes_what_was_foretold_for_each_kind_of_layer(name: str) -> None:
    target = family(name)
    assert cache_footprint(target).at(64) == held_bytes(target, 64)


def test_quantized_keys_and_values_are_counted_quantized() -> None:
    plain, packed = (cache_footprint(family("llama", bits)) for bits in (None, 8))
    assert 0 < packed.per_token < plain.per_token


def test_the_longest_context_that_fits_takes_no_more_than_there_is() -> None:
    footprint = CacheFootprint(per_token=10, rings=((4.0, 8),), fixed=100)
    assert (footprint.at(2), footprint.at(20)) == (128, 332)
    assert footprint.longest(332, 1000) == 20 and footprint.longest(331, 1000) == 19
    assert footprint.longest(1 << 40, 1000) == 1000 and footprint.longest(50, 1000) == 0


def test_a_token_reads_all_weights_but_a_table_that_only_gathers() -> None:
    target = family("llama")
    weights = sum(array.nbytes for _, array in tree_flatten(target.model.parameters()))
    assert bytes_per_token(target) == weights - target.embedding.weight.nbytes


@pytest.mark.parametrize("name", ["qwen3_next", "nanbeige"])
def test_experts_and_loops_are_not_guessed_at(name: str) -> None:
    assert bytes_per_token(family(name)) is None
