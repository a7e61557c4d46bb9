"""Disks and model folders."""

from pathlib import Path

from dspark.doctor import storage
from dspark.doctor.check import Subject
from dspark.hub.inventory import Inventory
from dspark.hub.shelves import Shelf
from dspark.machine.volume import Volume, volume

GIB = 1024**3
DISK = Subject("disk.1", "Disk")


def test_room(tmp_path):
    folder = tmp_path / "not" / "yet"
    assert storage.room(DISK, folder, tmp_path, Volume("/", 80 * GIB)) == DISK.ok(f"80.0 GiB free for {folder}")
    little = storage.room(DISK, folder, tmp_path, Volume("/Volumes/VS Code", GIB))
    assert (little.status, little.seen.endswith("on /Volumes/VS Code")) == ("warn", True)


def test_room_that_is_not_told_is_unknown(tmp_path):
    assert storage.room(DISK, tmp_path, tmp_path, None).seen == f"unknown space free for {tmp_path}"


def test_the_nearest_folder_that_exists_counts(tmp_path):
    assert storage.disk(tmp_path / "not" / "yet", 2).id == "disk.2"
    assert "GiB free" in storage.disk(tmp_path / "not" / "yet", 2).seen


def test_the_disk_of_this_machine(tmp_path):
    found = volume(tmp_path)
    assert found is not None
    assert found.free_bytes >= 0
    assert Path(found.mount).is_dir()


def test_a_folder_that_cannot_be_written_is_broken(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    check = storage.room(DISK, tmp_path, tmp_path, Volume("/", 80 * GIB))
    assert (check.status, "not writable" in check.seen) == ("fail", True)


def test_only_a_folder_that_the_user_named_must_exist(tmp_path):
    gone = tmp_path / "gone"
    assert storage.model_folder(Shelf("extra", gone, False), None, 1).status == "warn"
    assert storage.model_folder(Shelf("lm studio", gone, False), None, 2).status == "ok"


def test_what_lies_in_a_folder(tmp_path):
    shelf = Shelf("own", tmp_path, True)
    check = storage.model_folder(shelf, Inventory((tmp_path,) * 2, (tmp_path,), gguf=(tmp_path,)), 3)
    assert (check.id, check.status) == ("models.3", "ok")
    assert "2 models, 1 drafter, 1 GGUF folder passed over" in check.seen
    assert storage.model_folder(shelf, None, 3).status == "warn"


def test_partial_downloads_are_named_up_to_a_few(tmp_path):
    check = storage.model_folder(Shelf("own", tmp_path, True), Inventory(partial=tuple("abcde")), 1)
    assert check.status == "warn"
    assert check.seen.endswith("not usable: a; b; c; 2 more")
