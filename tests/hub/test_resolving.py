import logging
import time

import pytest
from modelfolders import safetensors, write_model, write_repository

from dspark.errors import CheckpointError, ModelNotFound, NetworkError, RemoteCodeRefused, StorageError, UsageError
from dspark.hub import resolve
from dspark.hub.shelves import search

NAME = "org/model-4bit"
CONFIG = b'{"model_type": "qwen3"}'


def cache(home):
    return home / ".cache/huggingface/hub"


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("kind", ["model", "drafter"])
def test_what_is_on_disk_is_used_without_a_network(kind, home):
    snapshot = write_repository(cache(home), NAME)
    assert resolve(NAME, kind=kind) == snapshot
    assert resolve(NAME, kind=kind, offline=True) == snapshot


def test_a_truncated_file_is_refused_wherever_it_lies(home):
    snapshot = write_repository(cache(home), NAME, shards=4)
    blob = (snapshot / "model-00002-of-00004.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match=rf"model-00002-of-00004\.safetensors is cut short.*delete {blob}"):
        resolve(NAME, kind="model")


@pytest.mark.parametrize(
    "config",
    [{"num_hidden_layers": 10**9}, {"num_hidden_layers": 1e300}, {"text_config": {"num_hidden_layers": 10**9}}],
)
def test_more_layers_than_weights_are_refused_before_they_are_built(config, tmp_path):
    """They would take all memory there is, and nothing could call the load off."""
    folder = write_model(tmp_path / "m", config={"model_type": "llama", **config})
    with pytest.raises(CheckpointError, match=r"layers, which 2 tensors cannot be the weights of"):
        resolve(str(folder), kind="model")


def test_a_registry_id_is_its_target(home):
    snapshot = write_repository(cache(home), "mlx-community/Qwen3-4B-8bit")
    assert resolve("qwen3-4b", kind="model") == snapshot
    drafter = write_repository(cache(home), "deepseek-ai/dspark_qwen3_4b_block7")
    assert resolve("qwen3-4b", kind="drafter") == drafter


def test_a_folder_is_before_a_registry_id(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "qwen3-4b")
    monkeypatch.chdir(tmp_path)
    assert resolve("qwen3-4b", kind="model").resolve() == folder


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_a_usage_error(name):
    with pytest.raises(UsageError):
        resolve(name, kind="model")


@pytest.mark.parametrize(
    "name", ["./x", "../x", "/nowhere/x", "~/x", "~nobody-by-this-name/x", "a/b/c", "file:///x", "org/..", "a b", "."]
)
def test_what_is_clearly_a_path_is_never_asked_of_the_hub(name, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ModelNotFound, CheckpointError)) as error:
        resolve(name, kind="model")
    assert "check the path" in one_line(error) or "has no config.json" in one_line(error)


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", None])
def test_offline_says_what_was_searched_and_what_to_do(variable, hub, home, monkeypatch):
    hub.files[NAME] = {"config.json": CONFIG, "model.safetensors": safetensors()}
    if variable:
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", "/some/where")
    with pytest.raises(ModelNotFound) as error:
        resolve(NAME, kind="model", offline=variable is None)
    text = one_line(error)
    for part in (NAME, "/some/where", "~/.mlx-dspark/models", "~/.cache/huggingface/hub", "~/.lmstudio/models"):
        assert part in text
    assert "HF_HUB_OFFLINE=0" in text
    assert hub.fetched == []


def test_offline_names_the_file_that_a_partial_download_lacks(home):
    snapshot = write_repository(cache(home), NAME, shards=4)
    (snapshot / "model-00003-of-00004.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"lacks model-00003-of-00004\.safetensors"):
        resolve(NAME, kind="model", offline=True)


def test_no_network_is_one_line_and_soon(capfd):
    started = time.monotonic()
    with pytest.raises(NetworkError) as error:
        resolve(NAME, kind="model")
    assert time.monotonic() - started < 30  # a hang, not a speed
    assert NAME in one_line(error)
    assert "check the network" in one_line(error)
    assert capfd.readouterr() == ("", "")


def test_a_cache_that_cannot_be_written_is_said_before_the_network_is_asked(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file/under"))
    with pytest.raises(StorageError, match=r"file/under/hub .*set HF_HOME"):
        resolve(NAME, kind="model")


def test_a_download_lands_in_the_shared_cache_and_is_found_there_next_time(hub, home, capfd, caplog):
    caplog.set_level(logging.INFO, "dspark")
    hub.files[NAME] = {
        "config.json": CONFIG,
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "model.safetensors": safetensors(),
        "modeling.py": b"raise SystemExit",
        "README.md": b"# model",
        "original/consolidated.safetensors": safetensors(),
        "consolidated.safetensors": safetensors(),
        "model-Q4.gguf": b"GGUF",
    }
    folder = resolve(NAME, kind="model")
    assert folder == cache(home) / "models--org--model-4bit" / "snapshots" / ("5" * 40)
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model.safetensors",
    }
    assert search(NAME).folder == folder
    fetched = len(hub.fetched)
    assert resolve(NAME, kind="model") == folder
    assert len(hub.fetched) == fetched
    assert capfd.readouterr() == ("", "")
    assert [record.getMessage() for record in caplog.records] == [
        "fetching org/model-4bit, 0 MB, into ~/.cache/huggingface/hub"
    ]


def test_a_hostile_checkpoint_costs_no_weights(hub, home):
    hub.files[NAME] = {
        "config.json": b'{"model_type": "qwen3", "auto_map": {"AutoModel": "evil.M"}}',
        "evil.py": b"raise SystemExit",
        "model.safetensors": safetensors(),
    }
    with pytest.raises(RemoteCodeRefused, match=r"config\.json: auto_map"):
        resolve(NAME, kind="model")
    assert hub.fetched == ["config.json"]
    folder = resolve(NAME, kind="model", trust_remote_code=True)
    assert (folder / "evil.py").exists()


def test_a_drafter_named_as_model_costs_no_weights(hub):
    config = b'{"model_type": "qwen3", "dflash_config": {}}'
    hub.files[NAME] = {"config.json": config, "model.safetensors": safetensors()}
    with pytest.raises(CheckpointError, match="--drafter"):
        resolve(NAME, kind="model")
    assert hub.fetched == ["config.json"]
    assert resolve(NAME, kind="drafter").is_dir()


def test_an_unknown_repository_is_not_found(hub):
    with pytest.raises(ModelNotFound) as error:
        resolve("org/no-such-model", kind="model")
    assert "check the spelling" in one_line(error)
    assert "~/.mlx-dspark/models" in one_line(error)


def test_a_gated_repository_says_how_to_get_in(hub):
    hub.files[NAME] = {"config.json": CONFIG, "model.safetensors": safetensors()}
    hub.gated.add(NAME)
    with pytest.raises(ModelNotFound, match="is gated: accept its licence"):
        resolve(NAME, kind="model")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config.json": CONFIG, "m-Q4.gguf": b"GGUF"}, "holds only GGUF files"),
        ({"config.json": CONFIG, "pytorch_model.bin": b"x"}, r"holds no \*\.safetensors"),
        ({"model.safetensors": safetensors()}, r"has no config\.json"),
    ],
)
def test_a_repository_that_is_no_model_is_said_so(files, said, hub):
    hub.files[NAME] = files
    with pytest.raises(CheckpointError, match=said):
        resolve(NAME, kind="model")


def test_a_gguf_in_lm_studio_does_not_stand_in_the_way(hub, home):
    folder = home / ".lmstudio/models" / NAME
    folder.mkdir(parents=True)
    (folder / "m-Q4.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match="holds only GGUF files"):
        resolve(NAME, kind="model", offline=True)
    hub.files[NAME] = {"config.json": CONFIG, "model.safetensors": safetensors()}
    assert resolve(NAME, kind="model").is_relative_to(cache(home))
