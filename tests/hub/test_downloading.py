import errno
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections import namedtuple

import pytest
from modelfolders import safetensors

from dspark.errors import NetworkError, StorageError
from dspark.hub import resolve, storage
from dspark.hub.shelves import search

NAME = "org/model-4bit"
CONFIG = b'{"model_type": "qwen3"}'
MEGABYTE = 1 << 20


def weights(size_bytes, name="model.embed_tokens.weight"):
    tensor = {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}
    header = json.dumps({name: tensor}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size_bytes)


def test_a_dropped_connection_is_taken_up_where_it_stopped(hub):
    hub.files[NAME] = {"config.json": CONFIG, "model.safetensors": weights(12 * MEGABYTE)}
    drops = [ConnectionError()]

    def drop_once(name, sent):
        if name == "model.safetensors" and sent >= 11 * MEGABYTE and drops:
            raise drops.pop()

    hub.before_chunk = drop_once
    assert resolve(NAME, kind="model").is_dir()
    assert hub.ranges == [("model.safetensors", f"bytes={10 * MEGABYTE}-")]


def test_an_interrupted_download_is_not_installed_and_goes_on_with_what_is_missing(hub):
    shards = {f"model-0000{i}-of-00002.safetensors": weights(12 * MEGABYTE, f"embed_{i}") for i in (1, 2)}
    hub.files[NAME] = {"config.json": CONFIG, **shards}

    def hang_up(name, sent):
        if name.endswith("2-of-00002.safetensors") and sent >= 11 * MEGABYTE:
            hub.files[NAME] = {}  # nothing more, for the library's retries neither
            raise ConnectionError

    hub.before_chunk = hang_up
    with pytest.raises(NetworkError):
        resolve(NAME, kind="model")
    assert search(NAME).folder is None
    assert any("lacks model-00002-of-00002.safetensors" in miss for miss in search(NAME).misses)

    hub.before_chunk = lambda name, sent: None
    hub.files[NAME] = {"config.json": CONFIG, **shards}
    hub.fetched.clear()
    folder = resolve(NAME, kind="model")
    assert search(NAME).folder == folder
    assert hub.fetched == ["model-00002-of-00002.safetensors"]


class Ended(BaseException):
    """What a handler for SIGTERM raises."""


def raise_ended(number, frame):
    raise Ended


@pytest.mark.parametrize(
    ("number", "handler", "raised"),
    [
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, raise_ended, Ended),
        (signal.SIGHUP, raise_ended, Ended),
    ],
)
def test_a_signal_ends_a_download_within_a_chunk(number, handler, raised, hub):
    hub.files[NAME] = {"config.json": CONFIG, "model.safetensors": weights(40 * MEGABYTE)}
    released = threading.Event()

    def interrupt(name, sent):
        if sent == 11 * MEGABYTE:
            os.kill(os.getpid(), number)
        if sent == 33 * MEGABYTE:
            released.wait(20)  # a download that cannot end: only stopping gets out of it

    hub.before_chunk = interrupt
    before = signal.signal(number, handler)
    try:
        with pytest.raises(raised):
            resolve(NAME, kind="model")
        assert not released.is_set()
        released.set()
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def test_a_full_disk_is_said_before_anything_is_fetched(hub, monkeypatch):
    hub.files[NAME] = {"config.json": CONFIG, "model.safetensors": weights(3 * MEGABYTE)}
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, MEGABYTE))
    with pytest.raises(StorageError, match=r"room for 1 MB and 3 MB are needed.*HF_HOME"):
        resolve(NAME, kind="model")
    assert hub.fetched == []


def test_a_disk_that_fills_up_on_the_way_is_a_storage_error(tmp_path):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "is full: free some space, or set HF_HOME" in str(storage.refused(error, tmp_path, "HF_HOME"))


def test_on_a_terminal_one_bar_runs_on_stderr_and_stdout_stays_clean(hub, home):
    hub.files[NAME] = {"config.json": CONFIG, "model.safetensors": safetensors()}
    program = f"from dspark.hub import resolve; resolve({NAME!r}, kind='model')"
    leader, follower = pty.openpty()
    environment = {**os.environ, "LANG": "C", "LC_ALL": "C", "NO_COLOR": "1", "COLUMNS": "60", "TERM": "xterm"}
    child = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdin=follower, stdout=subprocess.PIPE, stderr=follower
    )
    os.close(follower)
    shown = b""
    try:
        while data := os.read(leader, 65536):
            shown += data
    except OSError:  # how Linux reports the end of a terminal
        pass
    os.close(leader)
    assert child.returncode == 0, shown
    assert child.stdout == b""
    assert b"bytes" in shown
    assert all(len(line) <= 60 for line in shown.replace(b"\r", b"\n").split(b"\n") if b"\x1b" not in line)
