import os
import pwd

import pytest
from modelfolders import safetensors, write_model, write_repository

from dspark.errors import CheckpointError, StorageError, UsageError
from dspark.hub.shelves import hub_cache, search, shelves

NAME = "mlx-community/Qwen3-4B-8bit"


def test_shelves_are_listed_in_order_whether_or_not_they_exist(home, tmp_path, monkeypatch):
    extra = [tmp_path / "Volume 1", tmp_path / "absent"]
    extra[0].mkdir()
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", os.pathsep.join(map(str, extra)) + os.pathsep)
    (home / ".lmstudio/models").mkdir(parents=True)
    listed = [(shelf.kind, shelf.path, shelf.exists) for shelf in shelves()]
    assert listed == [
        ("extra", extra[0], True),
        ("extra", extra[1], False),
        ("own", home / ".mlx-dspark/models", False),
        ("hugging face", home / ".cache/huggingface/hub", False),
        ("lm studio", home / ".lmstudio/models", True),
        ("lm studio", home / ".cache/lm-studio/models", False),
    ]


def test_hub_cache_follows_the_variables_in_the_library_s_order(tmp_path, monkeypatch):
    from_variable = []
    for variable in ("XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"):
        monkeypatch.setenv(variable, f"/{variable}")
        from_variable.append(str(hub_cache()))
    assert from_variable == [
        "/XDG_CACHE_HOME/huggingface/hub",
        "/HF_HOME/hub",
        "/HUGGINGFACE_HUB_CACHE",
        "/HF_HUB_CACHE",
    ]
    monkeypatch.setenv("HF_HUB_CACHE", "$PLACE/hub")
    monkeypatch.setenv("PLACE", "/moved")
    assert str(hub_cache()) == "/moved/hub"


@pytest.mark.parametrize("form", [NAME, "mlx-community--Qwen3-4B-8bit", "mlx-community_Qwen3-4B-8bit", "Qwen3-4B-8bit"])
@pytest.mark.parametrize("asked", [NAME, "Qwen3-4B-8bit"])
def test_every_form_of_folder_name_is_found(form, asked, tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", str(tmp_path / "models"))
    folder = write_model(tmp_path / "models" / form)
    assert search(asked).folder == folder


@pytest.mark.parametrize("name", ["0" * 400, "o/" + "0" * 4000, "/" + "0" * 4000, "0" * 240])
def test_a_name_that_no_folder_can_have_is_nowhere(name, tmp_path, monkeypatch):
    (tmp_path / "org").mkdir()
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", str(tmp_path))
    assert search(name).folder is None


@pytest.mark.parametrize("asked", [NAME, "Qwen3-4B-8bit"])
@pytest.mark.parametrize("moved", [False, True])
def test_found_in_the_hugging_face_cache(asked, moved, home, tmp_path, monkeypatch):
    if moved:
        monkeypatch.setenv("HF_HOME", str(tmp_path / "elsewhere"))
    cache = tmp_path / "elsewhere/hub" if moved else home / ".cache/huggingface/hub"
    assert search(asked).folder is None
    snapshot = write_repository(cache, NAME)
    assert search(asked).folder == snapshot


def test_found_without_an_organisation_and_without_refs(home):
    snapshot = write_repository(home / ".cache/huggingface/hub", "gpt2", main=False)
    assert search("gpt2").folder == snapshot


def test_main_wins_over_other_revisions_unless_it_is_incomplete(home):
    cache = home / ".cache/huggingface/hub"
    main = write_repository(cache, NAME, revision="b" * 40)
    other = write_repository(cache, NAME, revision="c" * 40, main=False)
    assert search(NAME).folder == main
    assert search("Qwen3-4B-8bit").folder == main  # two revisions are one model, not an ambiguity
    (main / "model.safetensors").unlink()
    assert search(NAME).folder == other


@pytest.mark.parametrize("place", [".lmstudio/models", ".cache/lm-studio/models"])
def test_found_in_lm_studio(place, home):
    folder = write_model(home / place / "lmstudio-community" / "Qwen3.8-27B-MLX-8bit")
    assert search("lmstudio-community/Qwen3.8-27B-MLX-8bit").folder == folder
    assert search("Qwen3.8-27B-MLX-8bit").folder == folder


def test_shelves_are_searched_in_order_and_an_existing_path_is_before_all(home, tmp_path, monkeypatch):
    extra = tmp_path / "extra"
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", str(extra))
    folders = [
        write_model(home / ".lmstudio/models" / NAME),
        write_repository(home / ".cache/huggingface/hub", NAME),
        write_model(home / ".mlx-dspark/models" / NAME),
        write_model(extra / NAME),
    ]
    monkeypatch.chdir(tmp_path)
    for folder in folders:
        folder.joinpath("config.json").rename(folder / "put aside")
    for folder in folders:
        folder.joinpath("put aside").rename(folder / "config.json")
        assert search(NAME).folder == folder
    here = write_model(tmp_path / NAME)
    assert search(NAME).folder.resolve() == here


def test_a_bare_name_of_two_organisations_is_not_guessed(home):
    for organisation in ("one", "two"):
        write_model(home / ".lmstudio/models" / organisation / "M-4bit")
    with pytest.raises(UsageError, match=r"one/M-4bit or .*two/M-4bit"):
        search("M-4bit")
    assert search("two/M-4bit").folder == home / ".lmstudio/models/two/M-4bit"


def test_three_of_four_shards_are_not_installed(home):
    snapshot = write_repository(home / ".cache/huggingface/hub", NAME, shards=4)
    assert search(NAME).folder == snapshot
    (snapshot / "model-00003-of-00004.safetensors").unlink()
    found = search(NAME)
    assert found.folder is None
    assert found.misses == (f"~/{snapshot.relative_to(home)} lacks model-00003-of-00004.safetensors",)


def test_shards_without_their_index_are_counted_by_their_names(home):
    folder = write_model(home / ".lmstudio/models" / NAME, shards=3)
    (folder / "model.safetensors.index.json").unlink()
    assert search(NAME).folder == folder
    (folder / "model-00001-of-00003.safetensors").unlink()
    assert "lacks model-00001-of-00003.safetensors" in search(NAME).misses[0]


def test_broken_links_and_unfinished_downloads_are_not_installed(home):
    snapshot = write_repository(home / ".cache/huggingface/hub", NAME)
    link = snapshot / "model.safetensors"
    blob = link.resolve()
    unfinished = blob.with_name(blob.name + ".incomplete")
    blob.rename(unfinished)
    assert "lacks model.safetensors" in search(NAME).misses[0]
    link.unlink()
    link.symlink_to(unfinished)
    assert "lacks model.safetensors" in search(NAME).misses[0]


@pytest.mark.parametrize(
    ("files", "miss"),
    [
        (["config.json"], "has no *.safetensors"),
        (["model.safetensors"], "has no config.json"),
        (["config.json", "._model.safetensors"], "has no *.safetensors"),
        (["config.json", "model.safetensors.incomplete"], "has no *.safetensors"),
        (["model-Q4.gguf"], "holds only GGUF files"),
        ([], "has no config.json"),
    ],
)
def test_folders_that_are_no_model(files, miss, home):
    folder = home / ".lmstudio/models" / NAME
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_text("{}")
    found = search(NAME)
    assert found.folder is None
    assert miss in found.misses[0]
    with pytest.raises(CheckpointError) as error:
        search(str(folder))
    assert miss in str(error.value)


def test_files_that_macos_leaves_beside_a_model_do_not_count(home):
    folder = write_model(home / ".lmstudio/models" / NAME)
    (folder / "._model.safetensors").write_bytes(b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X")
    assert search(NAME).folder == folder


def test_a_file_is_not_a_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(safetensors())
    with pytest.raises(CheckpointError, match="is a file: name the folder"):
        search(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    "name", ["../secret", "org/..", "a/b/c", "~nobody-by-this-name/x", "x" * 5000, ".hidden", "nul\0"]
)
def test_names_that_lead_out_of_a_shelf_find_nothing(name, home, tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", str(tmp_path / "shelf/deep"))
    (tmp_path / "shelf/deep").mkdir(parents=True)
    write_model(tmp_path / "shelf/secret")
    write_model(tmp_path / "shelf/deep/.hidden")
    assert search(name).folder is None


def test_a_folder_that_cannot_be_read_is_a_storage_error(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors.index.json").mkdir()  # reading it fails, for root too
    with pytest.raises(StorageError, match=r"index\.json cannot be read"):
        search(str(folder))


@pytest.mark.parametrize("variable", ["MLX_DSPARK_HOME", "HF_HOME", "MLX_DSPARK_MODEL_DIRS"])
def test_the_home_of_an_unknown_user_is_a_storage_error(variable, monkeypatch):
    monkeypatch.setenv(variable, "~nobody-by-this-name/x")
    with pytest.raises(StorageError, match=rf"~nobody-by-this-name/x.* is not known: set HOME, or set {variable} to"):
        search(NAME)


def test_without_a_home_folder_the_variables_suffice(tmp_path, monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # an account that nobody knows
    with pytest.raises(StorageError, match="set HOME, or set MLX_DSPARK_HOME"):
        search(NAME)
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path / "own"))
    with pytest.raises(StorageError, match="set HOME, or set HF_HOME"):
        search(NAME)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    folder = write_model(tmp_path / "own/models" / NAME)
    assert search(NAME).folder == folder
    assert [shelf.kind for shelf in shelves()] == ["own", "hugging face"]
