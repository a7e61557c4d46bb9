"""What loading a pair would take, told without fetching anything, and by the one resolver that loading itself uses."""

import pytest
from modelfolders import safetensors, write_model, write_repository

from dspark.errors import CheckpointError, ModelNotFound, RemoteCodeRefused
from dspark.hub import demo
from dspark.hub.plan import plan
from dspark.hub.resolving import resolve

NAME = "org/model"


def of(model=NAME, drafter="none", **options):
    return plan(model, drafter, precision="fp32", **options)


@pytest.mark.parametrize(
    "place", ["hf cache", "moved hf home", "lm studio", "org_name", "org--name", "bare name", "extra folder"]
)
@pytest.mark.parametrize("role", ["target", "drafter"])
def test_l1_plan_and_loader_find_the_same_folder_wherever_it_is(place, role, home, tmp_path, monkeypatch):
    moved = tmp_path / "moved"
    if place == "moved hf home":
        monkeypatch.setenv("HF_HOME", str(moved))
    if place == "extra folder":
        monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", str(moved))
    own = home / ".mlx-dspark" / "models"
    folder = {
        "hf cache": lambda: write_repository(home / ".cache/huggingface/hub", NAME),
        "moved hf home": lambda: write_repository(moved / "hub", NAME),
        "lm studio": lambda: write_model(home / ".lmstudio/models" / NAME),
        "org_name": lambda: write_model(own / "org_model"),
        "org--name": lambda: write_model(own / "org--model"),
        "bare name": lambda: write_model(own / "model"),
        "extra folder": lambda: write_model(moved / NAME),
    }[place]()
    part = of()[0] if role == "target" else of(str(write_model(tmp_path / "other")), NAME)[1]
    assert part.folder == folder == resolve(NAME, kind="model" if role == "target" else "drafter")
    assert (part.fetch_bytes, part.weight_bytes, part.unknown) == (0, len(safetensors()), None)


def test_a_model_on_the_hub_is_sized_and_not_fetched(hub):
    hub.files[NAME] = {"config.json": b"{}", "model.safetensors": safetensors(), "pytorch_model.bin": bytes(999)}
    (part,) = of()
    assert part.folder is None
    assert part.weight_bytes == len(safetensors())
    assert part.fetch_bytes == len(safetensors()) + 2, "other packagings of the weights are not fetched"
    assert hub.fetched == []


def test_l2_an_incomplete_snapshot_is_not_installed_and_only_the_rest_is_to_fetch(hub, home):
    from fakehub import SHA

    cache = home / ".cache/huggingface/hub"
    snapshot = write_repository(cache, NAME, revision=SHA, shards=4)
    hub.files[NAME] = {file.name: file.read_bytes() for file in snapshot.iterdir()}
    (snapshot / "model-00003-of-00004.safetensors").resolve().unlink()  # a broken link stays
    (part,) = of()
    assert part.folder is None
    assert part.fetch_bytes == len(hub.files[NAME]["model-00003-of-00004.safetensors"])


def test_l2_offline_says_which_file_lacks(home, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = write_repository(home / ".cache/huggingface/hub", NAME, shards=4)
    (snapshot / "model-00003-of-00004.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"lacks model-00003-of-00004\.safetensors"):
        of()


def test_no_network_is_told_and_is_no_failure():
    (part,) = of()  # the address of the hub refuses connections
    assert (part.weight_bytes, part.fetch_bytes) == (None, None)
    assert "check the network" in part.unknown


def test_l4_a_folder_of_gguf_is_passed_over_with_a_hint(home, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = home / ".lmstudio/models" / NAME
    folder.mkdir(parents=True)
    (folder / "model.gguf").touch()
    with pytest.raises(ModelNotFound, match="holds only GGUF files, which MLX does not run"):
        of()


def test_l5_a_drafter_offered_as_a_model_is_refused_naming_the_flag(tmp_path):
    folder = write_model(tmp_path / "dflash")  # its config says plain qwen3
    (folder / "model.safetensors").write_bytes(safetensors(["layers.0.self_attn.q_proj.weight"]))
    with pytest.raises(CheckpointError, match="--drafter"):
        of(str(folder))
    (_, part) = of(str(write_model(tmp_path / "target")), str(folder))
    assert part.folder == folder


def test_a_checkpoint_with_code_is_refused_as_loading_would(tmp_path):
    folder = write_model(tmp_path / "m", config={"model_type": "qwen3", "auto_map": {"AutoModel": "evil.M"}})
    with pytest.raises(RemoteCodeRefused):
        of(str(folder))
    assert of(str(folder), trust_remote_code=True)[0].folder == folder


def test_the_registry_names_the_drafter_and_none_is_none(tmp_path, hub):
    folder = write_model(tmp_path / "Qwen3-4B-8bit")
    target, drafter = of(str(folder), None)
    assert target.folder == folder
    assert drafter.name == "deepseek-ai/dspark_qwen3_4b_block7" and drafter.unknown
    assert len(of(str(folder), "none")) == 1


def test_the_demo_pair_counts_what_it_fetches_once(home):
    target, drafter = of("demo", None)
    assert target.fetch_bytes == demo.fetch_bytes() > 0
    assert drafter.folder == demo.head()
    gguf = home / ".mlx-dspark/downloads/SmolLM2-135M-Instruct.Q4_1.gguf"
    gguf.parent.mkdir(parents=True)
    gguf.touch()
    assert of("demo", None)[0].fetch_bytes == 0


def test_a_drafter_in_a_gguf_file(tmp_path):
    file = tmp_path / "head.gguf"
    file.write_bytes(bytes(12))
    assert of(str(write_model(tmp_path / "m")), str(file))[1].weight_bytes == 12
