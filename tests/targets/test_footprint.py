"""What a context takes, against the bytes of caches that really hold one."""

import mlx.core as mx
import pytest
from families import family
from mlx.utils import tree_flatten

from dspark.targets.footprint import CacheFootprint, bytes_per_token, cache_footprint
from dspark.targets.target import Target
from dspark.targets.weighing import weigh


def held_bytes(target: Target) -> int:
    """What a cache really holds after 256 tokens (no more rows than that), the last eight of them one by one."""
    cache = target.new_cache()
    target.tap(())
    for tokens in ([3] * 248, *[[5]] * 8):
        target.forward(mx.array([tokens]), cache)
        mx.eval(cache.arrays)
    return sum(array.nbytes for array in cache.arrays)


@pytest.mark.parametrize(
    ("name", "bits"), [("llama", None), ("llama", 8), ("gemma3_text", None), ("qwen3_next", None), ("falcon_h1", None)]
)
def test_a_context_takes_what_was_foretold_for_each_kind_of_layer(name: str, bits: int | None) -> None:
    target = family(name, bits)
    assert cache_footprint(target).at(256) == held_bytes(target)


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
def test_experts_and_loops_are_read_as_they_are_weighed(name: str) -> None:
    assert bytes_per_token(family(name)) == weigh(family(name)).weight_bytes


def test_a_cache_of_an_unknown_kind_is_not_guessed_at() -> None:
    assert bytes_per_token(family("deepseek_v41")) is None
