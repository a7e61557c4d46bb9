"""What a prompt takes: pure arithmetic, and against what MLX measures on tiny models."""

from dataclasses import replace

import mlx.core as mx
import pytest
from families import family
from hypothesis import given
from hypothesis import strategies as st

from dspark.memory.estimate import LEAST_CHUNK_TOKENS, PrefillCost
from dspark.memory.probing import measure_prefill
from dspark.targets.footprint import CacheFootprint

COST = PrefillCost(CacheFootprint(1000, ((100.0, 512),), 5000), 50, 100, 20_000, 8.0)
tokens = st.integers(1, 20_000)


def test_a_prompt_takes_its_cache_and_the_deepest_chunk():
    plain = PrefillCost(CacheFootprint(1000, (), 0), 0, 0, 10, 2.0)
    assert plain.peak(4096, 2048) == 4096 * 1000 + 2048 * (10 + 2 * 4096)


def test_what_is_held_already_is_not_taken_again():
    assert COST.peak(4096, 2048, cached=2048) == COST.peak(4096, 2048) - COST.held(2048)


def test_attention_within_a_window_does_not_grow_with_the_context():
    ring = PrefillCost(CacheFootprint(0, ((10.0, 256),), 0), 0, 0, 0, 2.0, span=256)
    assert ring.peak(8192, 512) == ring.peak(1024, 512)


@given(tokens, st.sampled_from([256, 512, 1024, 2048]))
def test_a_shorter_chunk_never_takes_more(length, chunk):
    assert COST.peak(length, chunk // 2) <= COST.peak(length, chunk) + COST.layer_bytes * chunk


@given(tokens, st.integers(0, 10**9))
def test_the_chunk_that_is_chosen_fits_and_the_longest_prompt_does(length, room):
    chunk = COST.chunk(room, length, 2048)
    if chunk is None:
        assert COST.needs(length, LEAST_CHUNK_TOKENS) > room
        assert COST.longest(room, length) < length
    else:
        assert COST.needs(length, chunk) <= room
    longest = COST.longest(room, 20_000)
    assert longest == 0 or COST.needs(longest, LEAST_CHUNK_TOKENS) <= room


def test_scores_must_find_room_twice_where_no_kernel_fuses_them_away():
    """Two layers' may lie there at once: under a real limit the process died of it in two runs of five."""
    more = COST.needs(3000, 512) - COST.peak(3000, 512)
    assert more == int(512 * COST.score_bytes * 3000) > 0
    assert replace(COST, score_bytes=0.0).needs(3000, 512) == replace(COST, score_bytes=0.0).peak(3000, 512)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_5", "deepseek_v3", "mamba2", "gpt_oss"])
def test_the_estimate_is_near_the_measured_peak(name):
    target = family(name)
    cost = measure_prefill(target, None)
    cache, length = target.new_cache(), 400
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    target.forward(mx.zeros((1, length), dtype=mx.int32), cache)
    mx.eval(cache.arrays)
    added = mx.get_peak_memory() - before
    # Of kilobytes. Where a layer's widest pass and its scores do not coincide, their sum is too much; which buffers
    # live at once also depends on how MLX's threads take turns.
    assert 0.6 <= cost.peak(length, length) / added <= 2.5


def test_quantized_keys_and_values_take_less_and_are_told():
    plain, packed = measure_prefill(family("llama"), None), measure_prefill(family("llama", 4), None)
    assert packed.quantized and not plain.quantized
    assert packed.score_bytes > 0
