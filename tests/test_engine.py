"""The engine on tiny real models: loading, resolving, generating, refusing."""

import gc
import json
import weakref

import mlx.core as mx
import pytest
from tiny import DEEPSPEC, head_weights, speculators_config, write_head, write_llama

from dspark.decoding.events import Finished, RoundCommitted
from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import Engine, LoadOptions
from dspark.errors import (
    CheckpointError,
    DrafterFormatError,
    EngineBusy,
    ModelNotFound,
    NotLoaded,
    PairingError,
    PromptError,
    RemoteCodeRefused,
    UsageError,
)
from dspark.targets import rewind

PROMPT = [5, 9, 33, 7, 40, 12]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    return str(write_llama(root / "target")), str(write_head(root / "head"))


@pytest.fixture(scope="module")
def engine(folders):
    engine = Engine()
    engine.load(LoadOptions(model=folders[0], drafter=folders[1]))
    return engine


def answer(engine, prompt=PROMPT, max_tokens=40, **options):
    *_, last = engine.generate(Request(prompt, max_tokens=max_tokens, speculation=SpeculationOptions(**options)))
    assert isinstance(last, Finished)
    return last


def test_what_is_loaded_is_told(engine, folders):
    loaded = engine.loaded
    assert (loaded.target, loaded.drafter, loaded.family) == (*folders, "llama")
    assert loaded.modes == ("baseline", "lookup", "dspark")
    assert (loaded.default.mode, loaded.default.cap, loaded.block) == ("dspark", "auto", 5)
    assert (loaded.dtype, loaded.quantization, loaded.vocabulary, loaded.eos) == ("float32", None, 64, (2,))


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "lookup"},
        {"mode": "lookup", "cap": 3},
        {"mode": "dspark"},
        {"mode": "dspark", "lookup": False},
        {"mode": "dspark", "cap": 1},
        {"mode": "dspark", "cap": 5, "lookup": False},
        {"mode": "dspark", "cap": 5, "confidence": 0.5},
        {"mode": "dspark", "confidence": 0.9},
    ],
)
@pytest.mark.parametrize("prompt", [PROMPT, [7], PROMPT * 20])
def test_every_setting_gives_the_ids_of_plain_decoding(engine, options, prompt):
    plain = answer(engine, prompt, mode="baseline")
    assert answer(engine, prompt, **options).tokens == plain.tokens
    assert len(plain.tokens) == 40 or plain.reason == "stop"


def test_plain_decoding_is_mlx_lms(engine, folders):
    from mlx_lm import load, stream_generate

    model, tokenizer = load(folders[0])
    stock = [r.token for r in stream_generate(model, tokenizer, PROMPT, max_tokens=40)]
    ours = answer(engine, mode="baseline")
    assert list(ours.tokens) == stock[: len(ours.tokens)]


def test_the_cap_and_the_threshold_reach_the_rounds(engine):
    request = Request(PROMPT, max_tokens=30, speculation=SpeculationOptions("dspark", cap=3, lookup=False))
    rounds = [e for e in engine.generate(request) if isinstance(e, RoundCommitted)][1:]
    assert {r.cap for r in rounds[:10]} == {3} and {r.source for r in rounds[:10]} == {"drafter"}
    cut = answer(engine, max_tokens=30, mode="dspark", cap=5, lookup=False, confidence=1.0).statistics
    assert cut.drafted == 0 and cut.drafter_rounds > 0


def test_resolving_leaves_nothing_open(engine):
    resolve = engine.resolve
    assert resolve(SpeculationOptions()) == engine.loaded.default
    assert resolve(SpeculationOptions("baseline", cap=4, lookup=True)).describe() == "baseline"
    assert resolve(SpeculationOptions("lookup")).describe() == "lookup cap=auto"
    assert resolve(SpeculationOptions("auto", cap=2, lookup=False)).describe() == "dspark cap=2 lookup=off confidence=0"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (SpeculationOptions("dflash"), "dflash"),
        (SpeculationOptions("dspark", cap=6), "5"),
        (SpeculationOptions("dspark", cap=0), "1 to 5"),
        (SpeculationOptions("lookup", cap=33), "32"),
    ],
)
def test_what_the_pair_cannot_do_is_refused_with_its_limits(engine, options, named):
    """A28: a cap above the trained block is refused, both numbers named."""
    with pytest.raises(UsageError, match=named):
        engine.resolve(options)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Request([]), PromptError),
        (Request([64]), PromptError),
        (Request([-1]), PromptError),
        (Request([3] * 256), PromptError),
        (Request(PROMPT, max_tokens=0), UsageError),
    ],
)
def test_requests_that_cannot_be_decoded_are_refused_at_once(engine, request_, error):
    with pytest.raises(error):
        engine.generate(request_)


def test_one_generation_at_a_time(engine):
    stream = engine.generate(Request(PROMPT, max_tokens=30))
    next(stream)
    with pytest.raises(EngineBusy):
        engine.generate(Request(PROMPT))
    with pytest.raises(EngineBusy):
        engine.unload()
    stream.close()
    assert answer(engine, max_tokens=3).statistics.completion_tokens == 3


def test_the_top_two_are_the_greedy_choice_and_the_runner_up(engine):
    plain = answer(engine, mode="baseline", max_tokens=5)
    for at, token in enumerate(plain.tokens):
        top = engine.top_two([*PROMPT, *plain.tokens[:at]])
        assert top.first == token and top.second != token and top.gap >= 0


def test_unloading_frees_and_forgets(folders):
    engine = Engine()
    with pytest.raises(NotLoaded):
        engine.resolve(SpeculationOptions())
    with pytest.raises(NotLoaded):
        _ = engine.tokenizer
    engine.load(LoadOptions(model=folders[0], drafter=folders[1]))
    assert engine.tokenizer.eos_token_ids == {2}
    assert engine.unload() > 0
    assert engine.loaded is None
    with pytest.raises(NotLoaded):
        engine.generate(Request(PROMPT))


def test_unloading_frees_the_weights_at_once(folders):
    """Not when Python next looks for cycles, which may be hours: the next model needs the room."""
    engine = Engine()
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            engine.load(LoadOptions(model=folders[0], drafter=folders[1]))
            assert answer(engine, max_tokens=8).statistics.completion_tokens == 8
            layers = [weakref.ref(layer) for layer in engine._require().target.layers]
            engine.unload()
            assert not any(layer() for layer in layers)
    finally:
        gc.enable()


def test_models_that_come_and_go_leave_no_record_of_their_making(folders, tmp_path):
    """The draws of the weights that a checkpoint replaces would pile up, a swap after the other."""
    for _ in range(2):
        engine = Engine()
        engine.load(LoadOptions(model=folders[0], drafter="none"))
        engine.unload()
    mx.export_to_dot(str(tmp_path / "state.dot"), *mx.random.state)
    assert len((tmp_path / "state.dot").read_text().splitlines()) < 10


def test_a_target_without_a_drafter_runs_plain_or_looks_up(folders):
    engine = Engine()
    loaded = engine.load(LoadOptions(model=folders[0]))
    assert loaded.modes == ("baseline", "lookup") and loaded.default.mode == "lookup"
    assert any("drafter" in note for note in loaded.notes)
    assert engine.load(LoadOptions(model=folders[0], drafter="none")).modes == ("baseline", "lookup")


def test_a_model_whose_cache_cannot_go_back_says_why_it_runs_plain(tmp_path, monkeypatch):
    kinds = tuple(kind for kind in rewind._KINDS if kind[0].__name__ != "RotatingKVCache")
    monkeypatch.setattr(rewind, "_KINDS", kinds)  # as if a new mlx-lm had renamed it
    layers = ["sliding_attention", "full_attention"] * 3
    folder = write_llama(tmp_path / "swa", layer_types=layers, sliding_window=8)
    engine = Engine()
    loaded = engine.load(LoadOptions(model=str(folder)))
    assert loaded.modes == ("baseline",)
    assert any("RotatingKVCache" in note for note in loaded.notes)
    assert answer(engine, max_tokens=30).statistics.completion_tokens > 0


def test_bad_pairs_are_refused(folders, tmp_path):
    engine = Engine()
    wide = write_head(tmp_path / "wide", {**DEEPSPEC, "hidden_size": 48})
    with pytest.raises(PairingError, match="48"):
        engine.load(LoadOptions(model=folders[0], drafter=str(wide)))
    other = write_head(tmp_path / "other", speculators_config(speculators_model_type="eagle3"))
    with pytest.raises(DrafterFormatError, match="eagle3"):
        engine.load(LoadOptions(model=folders[0], drafter=str(other)))
    with pytest.raises(ModelNotFound):
        engine.load(LoadOptions(model=folders[0], drafter=str(tmp_path / "nowhere")))
    with pytest.raises(UsageError, match="precision"):
        engine.load(LoadOptions(model=folders[0], precision="fp32"))
    with pytest.raises(UsageError, match="dspark"):
        engine.load(LoadOptions(model=folders[0], mode="dspark"))
    assert engine.loaded is None


def test_bad_targets_are_refused(folders, tmp_path):
    engine = Engine()
    with pytest.raises(ModelNotFound):
        engine.load(LoadOptions(model=str(tmp_path / "nowhere")))
    (tmp_path / "empty").mkdir()
    with pytest.raises((ModelNotFound, CheckpointError)):
        engine.load(LoadOptions(model=str(tmp_path / "empty")))
    with pytest.raises(CheckpointError, match="--drafter"):
        engine.load(LoadOptions(model=folders[1]))
    hostile = write_llama(tmp_path / "hostile")
    config = json.loads((hostile / "config.json").read_text())
    (hostile / "config.json").write_text(json.dumps({**config, "text_config": {"auto_map": {"AutoModel": "evil.M"}}}))
    (hostile / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(RemoteCodeRefused, match="auto_map"):
        engine.load(LoadOptions(model=str(hostile)))
    assert not (tmp_path / "ran").exists()


def broken(tmp_path, name, **changes):
    """A tiny target whose config has other values."""
    folder = write_llama(tmp_path / name)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return str(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"text_config": "abc"},
        {"max_position_embeddings": "abc"},
        {"eos_token_id": "two"},
        {"num_attention_heads": 0},
        {"vocab_size": None},
    ],
    ids=str,
)
def test_a_target_with_a_nonsensical_config_is_refused_in_one_line(tmp_path, changes):
    with pytest.raises(CheckpointError) as refusal:
        Engine().load(LoadOptions(model=broken(tmp_path, "m", **changes)))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 3},
        {"rope_theta": 0},
        {"rope_theta": -5},
        {"mask_token_id": -1},
        {"mask_token_id": -2_000_000_000},
        {"mask_token_id": 64},
        {"block_size": 10**9},
        {"num_hidden_layers": 10**7},
        {"architectures": 5},
        {"architectures": "Qwen3DSparkModel"},
        {"quantization": True},
    ],
    ids=str,
)
def test_a_drafter_with_a_nonsensical_config_is_refused_by_name(folders, tmp_path, changes):
    head = write_head(tmp_path / "head", {**DEEPSPEC, **changes})
    if "quantization" in changes:
        weights = head_weights()
        packed, scales, biases = mx.quantize(mx.zeros((32, 96)), group_size=32, bits=8)
        write_head(
            head, {**DEEPSPEC, **changes}, {**weights, "fc.weight": packed, "fc.scales": scales, "fc.biases": biases}
        )
    with pytest.raises((DrafterFormatError, PairingError)) as refusal:
        Engine().load(LoadOptions(model=folders[0], drafter=str(head)))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["fc.weight", "confidence_head.proj.weight"])
def test_a_drafter_that_is_not_finite_is_refused(folders, tmp_path, name):
    weights = head_weights()
    weights[name] = weights[name] * float("nan")
    with pytest.raises(DrafterFormatError, match="not finite"):
        Engine().load(LoadOptions(model=folders[0], drafter=str(write_head(tmp_path / "nan", weights=weights))))


def test_a_registry_drafter_that_does_not_fit_leaves_lookup_and_says_why(tmp_path):
    """L10: a folder that is only called like a known target."""
    folder = write_llama(
        tmp_path / "SmolLM2-135M-Instruct",
        hidden_size=576,
        num_attention_heads=9,
        num_key_value_heads=3,
        num_hidden_layers=30,
    )
    loaded = Engine().load(LoadOptions(model=str(folder)))
    assert loaded.modes == ("baseline", "lookup")
    assert any("demo" in note and "vocabulary" in note for note in loaded.notes)


def test_the_dtype_is_that_of_the_logits(tmp_path):
    """The tie threshold hangs on it: an embedding's type may differ."""
    folder = write_llama(tmp_path / "mixed")
    weights = mx.load(str(folder / "model.safetensors"))
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].astype(mx.float16)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].astype(mx.float32)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    assert Engine().load(LoadOptions(model=str(folder))).dtype == "float32"


def test_others_may_use_the_target_between_rounds(engine):
    """Generations that wait, and a look at the top two, leave the taps of a running one alone."""
    request = Request(PROMPT, max_tokens=30, speculation=SpeculationOptions("dspark", cap=5, lookup=False))
    alone = [e for e in engine.generate(request) if isinstance(e, RoundCommitted)]
    running, waiting = (
        engine.generate(request),
        engine.generate(Request(PROMPT, speculation=SpeculationOptions("baseline"))),
    )
    disturbed = []
    for event in running:
        if isinstance(event, RoundCommitted):
            disturbed.append(event)
            engine.top_two(PROMPT)
    assert [(e.tokens, e.accepted, e.context) for e in disturbed] == [(e.tokens, e.accepted, e.context) for e in alone]
    waiting.close()
