"""Drafters of every kind through the engine: the answer is the plain one, and what was found out is told."""

from dataclasses import replace

import pytest
from drafters.test_packagings import NEMOTRON, PACKAGINGS, write_gguf
from tiny import dflash_config, random_weights, write_head, write_llama

from dspark.decoding.events import Finished
from dspark.decoding.request import Request, SpeculationOptions
from dspark.drafters.packaging import translate
from dspark.engine import Engine, LoadOptions

PROMPT = [5, 9, 33, 7, 40, 12]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_llama(tmp_path_factory.mktemp("models") / "llama"))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path / "home"))


def answer(engine, **options):
    *_, last = engine.generate(Request(PROMPT, max_tokens=40, speculation=SpeculationOptions(**options)))
    assert isinstance(last, Finished)
    return last


def written(tmp_path, fields):
    config = translate(fields)
    if config.confidence is not None and config.confidence.with_markov is None:
        config = replace(config, confidence=replace(config.confidence, with_markov=True))
    return str(write_head(tmp_path / "head", fields, random_weights(config)))


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        (dflash_config(), "dflash"),
        (PACKAGINGS["dflash 2"][0], "dflash"),
        (NEMOTRON, "dspark"),
        (PACKAGINGS["gemma 4"][0], "dspark"),
        (PACKAGINGS["deepspec, rnn"][0], "dspark"),
    ],
)
def test_the_answer_is_the_plain_one(model, tmp_path, fields, mode):
    engine = Engine()
    loaded = engine.load(LoadOptions(model=model, drafter=written(tmp_path, fields)))
    assert loaded.modes == ("baseline", "lookup", mode) and loaded.block == 5
    plain = answer(engine, mode="baseline").tokens
    for cap in (1, 3, 5):
        drafted = answer(engine, mode=mode, cap=cap, lookup=False)
        assert drafted.tokens == plain
        assert drafted.statistics.drafted > 0


def test_a_gguf_file_is_a_drafter(model, tmp_path, unhurried):
    write_gguf(tmp_path / "drafter.gguf", "llama.cpp, dspark, anchor unused")
    engine = Engine()
    with unhurried():
        loaded = engine.load(LoadOptions(model=model, drafter=str(tmp_path / "drafter.gguf")))
    assert loaded.modes[-1] == "dspark"
    assert any("rotations that pair halves" in note for note in loaded.notes)
    assert answer(engine, mode="dspark", lookup=False).tokens == answer(engine, mode="baseline").tokens
