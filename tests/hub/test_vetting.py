import json
import sys

import pytest
from modelfolders import safetensors, write_model

from dspark.errors import CheckpointError, RemoteCodeRefused
from dspark.hub import demo, vetting
from dspark.hub.resolving import resolve


def refused(folder, file, content):
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(RemoteCodeRefused) as error:
        vetting.refuse_code(folder, trust_remote_code=False)
    return str(error.value)


@pytest.mark.parametrize("kind", ["model", "drafter"])
def test_a_hostile_checkpoint_is_refused_and_its_file_never_runs(kind, tmp_path):
    touched = tmp_path / "touched"
    pointer = {"auto_map": {"AutoModel": "evil.M"}} if kind == "model" else {"model_file": "evil.py"}
    config = {"model_type": "qwen3", "text_config": pointer}
    folder = write_model(tmp_path / "m", config=config)
    (folder / "evil.py").write_text(f"open({str(touched)!r}, 'w')")
    with pytest.raises(RemoteCodeRefused, match=r"config\.json: (auto_map|model_file).*--trust-remote-code"):
        resolve(str(folder), kind=kind)
    assert resolve(str(folder), kind=kind, trust_remote_code=True) == folder
    assert not touched.exists()
    assert "evil" not in sys.modules


def test_a_drafter_with_an_auto_map_is_read_and_its_file_never_runs(tmp_path):
    from tiny import dflash_config, random_weights, write_head, write_llama

    from dspark.drafters.conventions import open_drafter
    from dspark.drafters.packaging import translate
    from dspark.targets.target import Target

    touched = tmp_path / "touched"
    config = dflash_config() | {"auto_map": {"AutoModel": "evil.DFlashDraftModel"}}
    folder = write_head(tmp_path / "head", config, random_weights(translate(config)))
    (folder / "evil.py").write_text(f"open({str(touched)!r}, 'w')")
    found = resolve(str(folder), kind="drafter")
    assert open_drafter(found, Target.load(write_llama(tmp_path / "target"))).drafter.block > 0
    assert not touched.exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", {"model_file": "x.py"}, "config.json: model_file"),
        ("config.json", {"model_file": ""}, "config.json: model_file"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["t.T", None]}}, "tokenizer_config.json: auto_map"),
        ("processor_config.json", {"auto_map": {"AutoProcessor": "p.P"}}, "processor_config.json: auto_map"),
        ("sub/config.json", {"a": [[{"b": {"auto_map": "x.Y"}}]]}, "sub/config.json: auto_map"),
        ("config.json", {"Auto_Map": {"AutoModel": "m.M"}}, "config.json: Auto_Map (auto_map)"),
        ("config.json", {"MODEL_FILE": "x.py"}, "config.json: MODEL_FILE (model_file)"),
        ("config.json", r'{"\u0061uto_map": {"AutoModel": "m.M"}}', "config.json: auto_map"),
        ("config.json", '{"auto_map": {"AutoModel": "m.M"}, "auto_map": null}', "config.json: auto_map"),
        ("config.json", b'\xef\xbb\xbf{"model_file": "x.py"}'.decode(), "config.json: model_file"),
        ("config.json", {"auto_map": {"A": "m.M"}, "model_file": "x.py"}, "config.json: auto_map, model_file"),
    ],
)
def test_every_pointer_to_code_is_refused_by_name(file, content, said, tmp_path):
    assert f"({said})" in refused(write_model(tmp_path / "m"), file, content)


def test_words_of_a_vocabulary_and_nulls_are_not_code(tmp_path):
    folder = write_model(tmp_path / "m", config={"model_type": "qwen3", "auto_map": None})
    (folder / "vocab.json").write_text(json.dumps({"auto_map": 17, "model_file": 18}))
    vetting.refuse_code(folder, trust_remote_code=False)


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "\x00"])
def test_json_that_cannot_be_read_cannot_be_vetted(content, tmp_path):
    folder = write_model(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not valid JSON"):
        vetting.refuse_code(folder, trust_remote_code=False)


def test_files_that_macos_leaves_are_not_read(tmp_path):
    folder = write_model(tmp_path / "m")
    (folder / "._config.json").write_bytes(b"\x00\x05\x16\x07")
    vetting.refuse_code(folder, trust_remote_code=False)


@pytest.mark.parametrize(("value", "trusts"), [("1", True), ("true", True), ("0", False), ("", False), ("no", False)])
def test_the_environment_trusts_for_the_process(value, trusts, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_TRUST_REMOTE_CODE", value)
    assert vetting.trusted(False) is trusts


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3", "dflash_config": {"mask_token_id": 16}},
        {"speculators_model_type": "dspark", "transformer_layer_config": {"model_type": "qwen3"}},
        {"model_type": "qwen3", "markov_rank": 64},
        {"model_type": "qwen3", "architectures": ["Qwen3DSparkModel"]},
        {"model_type": "qwen3", "architectures": ["DFlashDraftModel"]},
    ],
)
def test_a_drafter_is_known_by_its_config_though_it_has_an_embedding(config, tmp_path):
    folder = write_model(tmp_path / "m", config=config)
    with pytest.raises(CheckpointError, match=r"is a drafter, not a chat model .*--drafter"):
        resolve(str(folder), kind="model")
    assert resolve(str(folder), kind="drafter") == folder


@pytest.mark.parametrize(
    "tensors",
    [
        ["fc.weight", "hidden_norm.weight", "layers.0.mlp.up_proj.weight", "norm.weight"],
        ["model.embed_tokens.weight", "markov_head.markov_w1.weight"],
        ["model.embed_tokens.weight", "d2t"],
    ],
)
def test_a_drafter_is_known_by_its_tensors_though_its_config_says_qwen3(tensors, tmp_path):
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    with pytest.raises(CheckpointError, match="is a drafter"):
        resolve(str(folder), kind="model")


@pytest.mark.parametrize(
    "embedding", ["model.embed_tokens.weight", "transformer.wte.weight", "backbone.embeddings.weight"]
)
def test_chat_models_are_not_taken_for_drafters(embedding, tmp_path):
    folder = write_model(tmp_path / "m", config={"model_type": "x", "architectures": ["XForCausalLM"]})
    (folder / "model.safetensors").write_bytes(safetensors([embedding, "norm.weight"]))
    assert resolve(str(folder), kind="model") == folder


def test_the_shipped_head_passes_as_a_drafter_only():
    assert resolve("demo", kind="drafter") == demo.head()
    with pytest.raises(CheckpointError, match="is a drafter"):
        resolve(str(demo.head()), kind="model")
