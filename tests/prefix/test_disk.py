"""The second tier: it outlives the process, and whatever is wrong with it, answers stay right and are given."""

import errno
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prefix.pairs import KINDS, ask, assert_same, tokens

from dspark.engine import Engine
from dspark.errors import StorageError, UsageError
from dspark.prefix import filing
from dspark.prefix.disk import DiskTier

PROMPT = tokens(150, seed=30)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "conversations"


def session(home, folder, kind="trimmed, dspark", prompt=PROMPT, **prefix):
    """A process's life: load, answer, leave; returns the answer and what was told of the disk just before leaving."""
    engine = home.engine(kind, folder=str(folder), **prefix)
    last = ask(engine, prompt)
    cold = ask(engine, prompt, reuse=False)
    if engine.loaded.kv_bits is None:
        assert_same(engine, prompt, last.tokens, cold.tokens)
    report = engine.prefix_cache.report().disk
    tier = engine.prefix_cache._disk
    engine.unload()
    return last, report, tier.report()


def files(folder):
    return sorted(Path(folder).glob("prefix-*"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_survives_a_restart(home, folder, kind):
    first, _, left = session(home, folder, kind)
    assert (left.written, left.errors) == (1, 0)
    again, report, _ = session(home, folder, kind, [*PROMPT, *first.tokens, 5, 6])
    assert again.statistics.cached_tokens >= len(PROMPT) - 1
    assert (report.read, report.ignored) == (1, 0)
    assert len(files(folder)) == 1, "the file of the conversation, written anew"


def test_what_leaves_memory_is_read_back_from_disk(home, folder):
    engine = home.engine("hybrid", folder=str(folder), slots=1)
    ask(engine, PROMPT)
    for seed in (31, 32):
        engine.prefix_cache._disk.wait()
        ask(engine, tokens(150, seed=seed))
    engine.prefix_cache._disk.wait()
    assert ask(engine, PROMPT).statistics.cached_tokens >= len(PROMPT) - 1
    assert engine.prefix_cache.report().disk.read == 1


def test_an_idle_moment_is_used_to_write(home, folder):
    engine = home.engine("trimmed, dspark", folder=str(folder))
    assert engine.prefix_cache.settle() is False
    ask(engine, PROMPT)
    assert engine.prefix_cache.settle() is True
    engine.prefix_cache._disk.wait()
    assert len(files(folder)) == 1
    assert engine.prefix_cache.settle() is False, "nothing has changed since"


def test_a_mode_without_a_drafter_is_written_too(home, folder):
    engine = home.engine("trimmed, dspark", folder=str(folder))
    ask(engine, PROMPT, mode="baseline")
    engine.unload()
    engine = home.engine("trimmed, dspark", folder=str(folder))
    assert ask(engine, PROMPT, mode="dspark").statistics.cached_tokens == 0, "the drafter would know nothing of it"
    assert ask(engine, PROMPT, mode="baseline").statistics.cached_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "junk", "garbled tokens"])
def test_c12_a_damaged_file_is_passed_over_with_a_line(home, folder, damage, caplog):
    session(home, folder)
    (path,) = files(folder)
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(
        {
            "cut": data[:-10],
            "flipped": data[: start + 2000] + bytes([data[start + 2000] ^ 1]) + data[start + 2001 :],
            "empty": b"",
            "junk": os.urandom(5000),
            "garbled tokens": data[: start + 40] + bytes(8) + data[start + 48 :],
        }[damage]
    )
    with caplog.at_level(logging.WARNING):
        last, report, _ = session(home, folder)
    assert last.statistics.cached_tokens == 0
    assert report.ignored + report.errors == 1
    assert len([r for r in caplog.records if path.name in r.getMessage()]) == 1


def test_c12_files_of_another_model_of_the_same_name_are_not_used(home, folder, tmp_path, caplog):
    """Its layers, its weights, its drafter or the bits of its cache are others."""
    from dataclasses import replace

    from tiny import write_llama

    target = write_llama(tmp_path / "model", max_position_embeddings=1024)
    options = replace(home.options("trimmed, dspark", folder=str(folder)), model=str(target), drafter="none")

    def cached():
        engine = Engine()
        engine.load(options)
        last, report = ask(engine, PROMPT), engine.prefix_cache.report()
        engine.unload()
        return last.statistics.cached_tokens, report.disk.ignored

    assert cached() == (0, 0)
    assert cached() == (len(PROMPT) - 1, 0)
    write_llama(target, seed=1, max_position_embeddings=1024)
    with caplog.at_level(logging.WARNING):
        assert cached() == (0, 1)
    assert any("another model" in record.getMessage() for record in caplog.records)
    write_llama(target, seed=1, max_position_embeddings=1024, num_hidden_layers=4)
    assert cached() == (0, 2)


def test_a_read_only_folder_serves_what_it_has_and_says_that_it_takes_no_more(home, folder, monkeypatch, caplog):
    first, _, _ = session(home, folder)

    def refused(path, *args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(filing, "write", refused)
    with caplog.at_level(logging.WARNING):
        last, _, left = session(home, folder, prompt=[*PROMPT, *first.tokens, 9])
    assert last.statistics.cached_tokens >= len(PROMPT)
    assert (left.errors, left.written) == (1, 0) and "Read-only" in left.last_error
    assert any("Read-only" in record.getMessage() for record in caplog.records)


def test_a_folder_that_cannot_be_made_does_not_keep_a_model_from_loading(home, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        last, report, _ = session(home, tmp_path / "file" / "below")
    assert last.tokens and report.errors == 1 and caplog.records


@pytest.mark.parametrize("name", ["~nobody-of-that-name/kept", "kept\0here"])
def test_a_name_that_can_be_no_folders_is_refused(home, name):
    with pytest.raises((UsageError, StorageError), match="--prefix-cache-dir"):
        home.engine("trimmed, dspark", folder=name)


def test_the_bound_holds_and_what_was_not_used_for_longest_goes(home, folder):
    engine = home.engine("trimmed, dspark", folder=str(folder))
    ask(engine, PROMPT)
    engine.unload()
    size = files(folder)[0].stat().st_size
    engine = home.engine("trimmed, dspark", folder=str(folder), disk_bytes=2 * size + size // 2, slots=8)
    for seed in range(40, 45):
        ask(engine, tokens(150, seed=seed))
    engine.unload()
    assert sum(path.stat().st_size for path in files(folder)) <= 2 * size + size // 2
    assert len(files(folder)) == 2
    engine = home.engine("trimmed, dspark", folder=str(folder), disk_bytes=10)
    ask(engine, tokens(150, seed=46))
    tier = engine.prefix_cache._disk
    engine.unload()
    assert tier.report().skipped == 1, "what is too large alone is not written"


def test_what_cannot_be_deleted_does_not_keep_the_others_from_making_room(home, folder, monkeypatch):
    engine = home.engine("trimmed, dspark", folder=str(folder))
    ask(engine, PROMPT)
    engine.unload()
    (own,) = files(folder)
    size = own.stat().st_size
    foreign, inside, loop = (folder / f"prefix-{name}.safetensors" for name in ("foreign", "folder", "loop"))
    foreign.write_bytes(b"x")
    inside.mkdir()
    loop.symlink_to(loop)
    for at, path in enumerate((foreign, inside)):
        os.utime(path, (at, at))
    unlink = Path.unlink

    def sticky(path, *args, **kwargs):
        if path == foreign:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(Path, "unlink", sticky)
    engine = home.engine("trimmed, dspark", folder=str(folder), disk_bytes=size + size // 2)
    ask(engine, tokens(150, seed=48))
    tier = engine.prefix_cache._disk
    engine.unload()
    assert (tier.report().errors, tier.report().written) == (0, 1), tier.report()
    assert foreign.exists() and inside.exists() and not own.exists()


def test_no_more_is_written_than_the_bound_leaves_beside_what_cannot_be_deleted(home, folder, monkeypatch):
    engine = home.engine("trimmed, dspark", folder=str(folder))
    ask(engine, PROMPT)
    engine.unload()
    size = files(folder)[0].stat().st_size

    def sticky(path, *args, **kwargs):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    engine = home.engine("trimmed, dspark", folder=str(folder), disk_bytes=size + size // 2)
    ask(engine, tokens(150, seed=49))
    tier = engine.prefix_cache._disk
    with monkeypatch.context() as patch:
        patch.setattr(type(folder), "unlink", sticky)
        assert tier._make_room(size, folder / "prefix-new.safetensors") is False
    engine.unload()


def test_a_file_that_makes_room_just_before_it_is_read_is_no_fault(home, folder, monkeypatch):
    engine = home.engine("hybrid", folder=str(folder), slots=1)
    ask(engine, PROMPT)
    ask(engine, tokens(150, seed=31))
    tier = engine.prefix_cache._disk
    tier.wait()
    assert len(files(folder)) == 1
    read = filing.read

    def late(path):
        tier._make_room(tier._limit_bytes, folder / "prefix-new.safetensors")
        return read(path)

    monkeypatch.setattr(filing, "read", late)
    assert tier.take([*PROMPT, 5], 0, drafted=False) is None
    assert tier.report().errors == 0 and files(folder) == []


def test_the_bound_is_for_files_as_they_are_with_their_headers(home, folder):
    engine = home.engine("trimmed, dspark", folder=str(folder))
    ask(engine, PROMPT)
    engine.unload()
    size = files(folder)[0].stat().st_size
    engine = home.engine("trimmed, dspark", folder=str(folder), disk_bytes=2 * size - 500)
    ask(engine, tokens(150, seed=47))
    engine.unload()
    assert len(files(folder)) == 1


def test_leftovers_of_a_process_that_was_killed_are_swept_once_they_are_old(home, folder):
    folder.mkdir()
    old, new = folder / ".prefix-a.1.part", folder / ".prefix-b.2.part"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (time.time() - 7200,) * 2)
    home.engine("trimmed, dspark", folder=str(folder))
    assert not old.exists() and new.exists()


KILLED = """
import sys, threading, time
sys.path[:0] = {paths!r}
import numpy as np
from pathlib import Path
from dspark.prefix import filing
data = [filing.Tensor("I32", (2_000_000,), np.zeros(2_000_000, dtype=np.int32)) for _ in range(8)]
print("ready", flush=True)
for count in range(1000):
    filing.write(Path({folder!r}) / f"prefix-{{count % 3}}.safetensors", {{"key": count}}, data)
"""


def test_kill_minus_9_while_writing_leaves_only_whole_files(tmp_path, home):
    """Acceptance 3: a next process starts, ignores what is not its own, and answers."""
    script = KILLED.format(paths=sys.path, folder=str(tmp_path))
    for delay in (0.05, 0.12, 0.2):
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"ready\n"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    for path in tmp_path.glob("prefix-*.safetensors"):
        filing.read(path)
    last, report, left = session(home, tmp_path)
    assert last.tokens and report.errors == 0 and left.written == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 300 kB; skipped where none can be mounted."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=False)


def test_a_full_disk_is_counted_and_said_and_answers_go_on(home, small_disk, caplog):
    """Acceptance 3, on a file system that is really full."""
    engine = home.engine("trimmed, dspark", folder=str(small_disk))
    ask(engine, PROMPT)
    assert engine.prefix_cache.settle()
    engine.prefix_cache._disk.wait()
    (small_disk / "ballast").write_bytes(bytes(100_000))
    with caplog.at_level(logging.WARNING):
        for seed in (51, 52):
            last = ask(engine, tokens(150, seed=seed))
            engine.prefix_cache.settle()
            engine.prefix_cache._disk.wait()
    assert last.tokens
    disk = engine.prefix_cache.report().disk
    assert disk.errors >= 1 and "No space" in disk.last_error
    assert not list(small_disk.glob(".*.part"))
    assert ask(engine, PROMPT).statistics.cached_tokens == len(PROMPT) - 1


def test_a_full_disk_without_one(home, folder, monkeypatch, caplog):
    """The same where nothing can be mounted: the system's own error."""

    def full(path, *args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(filing, "write", full)
    with caplog.at_level(logging.WARNING):
        last, _, left = session(home, folder)
    assert last.tokens and (left.errors, left.written) == (1, 0) and "No space" in left.last_error


def test_writing_is_left_out_while_another_write_is_under_way(home, folder, monkeypatch):
    engine = home.engine("trimmed, dspark", folder=str(folder))
    ask(engine, PROMPT)
    with monkeypatch.context() as patch:
        patch.setattr(DiskTier, "busy", property(lambda self: True))
        assert engine.prefix_cache.settle() is False
    assert engine.prefix_cache.settle() is True
