"""The context window: what is in force, and a warning where it does not fit."""

import pytest
from families import family
from machines import GB, Set
from tiny import write_llama

from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import Engine, LoadOptions
from dspark.errors import PromptError
from dspark.machine.ceilings import Ceiling
from dspark.memory.guard import MemoryGuard
from dspark.memory.window import window_warning
from dspark.targets.footprint import CacheFootprint, cache_footprint

# 64 GB, of which a model takes 29 and others 8.
LEFT = Ceiling("the machine's free memory", "close other programs", 64 * GB, 27 * GB, 2 * GB)


def warning(cache, window=262_144, quantized=False):
    return window_warning(cache, window, LEFT, quantized=quantized)


def test_k2_a_window_that_does_not_fit_is_told_at_load_with_a_value_that_does():
    full = CacheFootprint(160_000, (), 0)
    text = warning(full)
    assert "262144 tokens takes 41.9 GB" in text and "25.0 GB are left" in text
    fitting = int(text.split("--context-window ")[1].split(",")[0])
    assert fitting % 1024 == 0 and full.at(fitting) <= 25 * GB < full.at(fitting + 1024)


def test_k2_hybrid_and_sliding_layers_are_not_counted_as_if_they_grew():
    assert warning(CacheFootprint(40_000, ((120_000.0, 4096),), 10**8)) is None


def test_k2_the_need_scales_with_the_kv_bits():
    plain, packed = (cache_footprint(family("llama", bits)) for bits in (None, 4))
    assert plain.per_token == 3 * 2 * 2 * 8 * 4
    assert packed.per_token < 3 * 2 * 2 * 32 * 4 / 4
    assert "--kv-bits 8" in warning(CacheFootprint(160_000, (), 0))
    assert "--kv-bits" not in warning(CacheFootprint(160_000, (), 0), quantized=True)


def test_k8_an_unknown_machine_gives_no_warning():
    assert window_warning(CacheFootprint(10**9, (), 0), 4096, None, quantized=False) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_llama(tmp_path_factory.mktemp("window") / "model"))


def load(folder, **options):
    engine = Engine(MemoryGuard(Set()))
    engine.load(LoadOptions(folder, **options))
    return engine


def test_a_smaller_window_is_in_force_for_prompt_and_answer(folder):
    engine = load(folder, context_window=40)
    assert engine.loaded.context_window == 40
    with pytest.raises(PromptError, match="> 39 maximum"):
        engine.generate(Request([5] * 40))
    *_, last = engine.generate(Request([5] * 35, max_tokens=99, speculation=SpeculationOptions("baseline")))
    assert len(last.tokens) <= 5


def test_a_window_beyond_the_models_is_cut_to_it_and_told(folder):
    loaded = load(folder, context_window=10_000).loaded
    assert loaded.context_window == 256
    assert any("10000 is more than this model was made for" in note for note in loaded.notes)


def test_k2_the_engine_notes_it(folder):
    engine = Engine(MemoryGuard(Set(64 * GB, 2 * GB + 50_000, "normal")))
    loaded = engine.load(LoadOptions(folder))
    assert any("a full context of 256 tokens takes" in note for note in loaded.notes)
