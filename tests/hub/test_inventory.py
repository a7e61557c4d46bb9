"""What lies on a shelf: the same models that a search finds, and nothing that is none."""

import json
import struct
from pathlib import Path

import pytest
from modelfolders import safetensors, write_model, write_repository

from dspark.hub import inventory, shelves
from dspark.hub.inventory import Inventory

DRAFTER = {"model_type": "qwen3", "dspark_config": {"block_size": 7}}


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", str(folder))
    return folder


@pytest.mark.parametrize("form", ["org/name", "org--name", "org_name", "name"])
def test_l1_every_layout_that_a_search_finds(shelf, form):
    write_model(shelf / form)
    assert inventory.take(shelf) == Inventory(models=(shelves.search("org/name").folder,))


def test_l1_the_hugging_face_layout(shelf):
    write_repository(shelf, "org/name", revision="a" * 40, main=False)
    current = write_repository(shelf, "org/name", revision="b" * 40)
    assert inventory.take(shelf) == Inventory(models=(current,))
    assert shelves.search("org/name").folder == current


def test_other_things_in_a_cache_are_passed_over(shelf):
    for name in ("datasets--org--data", ".locks/models--org--name", "blobs/ab", "spaces--org--app"):
        write_model(shelf / name) if name.startswith(("datasets", "spaces")) else (shelf / name).mkdir(parents=True)
    (shelf / "CACHEDIR.TAG").touch()
    only_config = shelf / "models--org--tokenizer" / "snapshots" / ("a" * 40)
    only_config.mkdir(parents=True)
    (only_config / "config.json").write_text("{}")
    assert inventory.take(shelf) == Inventory()


def test_l2_a_shard_that_is_missing(shelf):
    write_model(shelf / "org" / "name", shards=4)
    (shelf / "org" / "name" / "model-00003-of-00004.safetensors").unlink()
    (partial,) = inventory.take(shelf).partial
    assert partial.endswith("org/name lacks model-00003-of-00004.safetensors")


def test_l2_a_download_that_was_broken_off(shelf):
    snapshot = write_repository(shelf, "org/name")
    weights = snapshot / "model.safetensors"
    blob = weights.resolve()
    blob.rename(blob.with_name(f"{blob.name}.incomplete"))
    assert len(inventory.take(shelf).partial) == 1
    weights.unlink()
    assert len(inventory.take(shelf).partial) == 1


def test_l2_a_download_that_left_no_snapshot(shelf):
    blobs = shelf / "models--org--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.incomplete").touch()
    (partial,) = inventory.take(shelf).partial
    assert partial.endswith("models--org--name has no snapshot")


def test_a_leftover_beside_a_whole_model_is_no_partial_download(shelf):
    snapshot = write_repository(shelf, "org/name")
    (snapshot.parents[1] / "blobs" / "abc.incomplete").touch()
    assert inventory.take(shelf) == Inventory(models=(snapshot,))


def test_l4_gguf_alone_is_no_model(shelf):
    folder = shelf / "org" / "name-GGUF"
    folder.mkdir(parents=True)
    (folder / "name.gguf").touch()
    assert inventory.take(shelf) == Inventory(gguf=(folder,))


def test_l5_drafters_by_config_or_by_structure(shelf):
    by_config = write_model(shelf / "org" / "a", config=DRAFTER)
    by_structure = write_model(shelf / "org" / "b")
    (by_structure / "model.safetensors").write_bytes(safetensors(["layers.0.weight"]))
    assert inventory.take(shelf) == Inventory(drafters=(by_config, by_structure))


def test_files_that_macos_leaves_on_foreign_disks(shelf):
    folder = write_model(shelf / "org" / "name")
    (folder / "._model.safetensors").write_bytes(b"\0\5\26\7")
    assert inventory.take(shelf) == Inventory(models=(folder,))


@pytest.mark.parametrize("damage", [b"", struct.pack("<Q", 1 << 40), b"\xff" * 64])
def test_damaged_weights_do_not_stop_it(shelf, damage):
    folder = write_model(shelf / "org" / "name")
    (folder / "model.safetensors").write_bytes(damage)
    assert inventory.take(shelf) == Inventory(models=(folder,))


def test_a_broken_index_is_told(shelf):
    folder = write_model(shelf / "org" / "name", shards=2)
    (folder / "model.safetensors.index.json").write_text("{")
    (partial,) = inventory.take(shelf).partial
    assert "is not valid JSON" in partial


def test_a_config_that_is_none_is_passed_over(shelf):
    folder = write_model(shelf / "org" / "name")
    (folder / "config.json").write_text(json.dumps([1]))
    assert inventory.take(shelf).partial == ()


def test_a_shelf_that_cannot_be_read():
    assert inventory.take(Path("/nowhere")) is None
