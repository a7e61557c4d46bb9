"""Acceptance 3: what can go wrong with the second tier, to a server that is a process of its own.

It starts, answers, and says in one line each what it could not use or write. Four servers take their time to start, so
this runs where `MLX_DSPARK_REAL_DISKS=1` asks for it; `test_disk` has the same faults within one process.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
from server.live import write_target

from dspark.prefix import filing

pytestmark = pytest.mark.skipif(
    not os.environ.get("MLX_DSPARK_REAL_DISKS"), reason="asked for by MLX_DSPARK_REAL_DISKS=1"
)

MAIN = "from dspark.commands.entry import main; main()"
# A disk that takes the first file, and only half of every later one: the rest would take for ever.
HALF_WAY = """
import os, pathlib, tempfile, time
mkstemp, fdopen, names = tempfile.mkstemp, os.fdopen, {}
class Half:
    def __init__(self, stream): self.stream = stream
    def __enter__(self): return self
    def __exit__(self, *error): self.stream.close()
    def write(self, data):
        self.stream.write(bytes(data)[: len(data) // 2 + 1])
        self.stream.flush()
        time.sleep(600)
def named(*arguments, **options):
    handle, name = mkstemp(*arguments, **options)
    names[handle] = pathlib.Path(name)
    return handle, name
def opened(handle, *arguments, **options):
    stream, path = fdopen(handle, *arguments, **options), names.pop(handle, None)
    return Half(stream) if path is not None and list(path.parent.glob("prefix-*.safetensors")) else stream
tempfile.mkstemp, os.fdopen = named, opened
"""
PROMPTS = [f"{number} is the number of this conversation. " * 9 for number in range(6)]
BYTES_OF_A_FILE = 200_000


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("served") / "model")


class Server:
    def __init__(self, process, url):
        self.process, self.url, self.lines = process, url, []

    def ask(self, prompt):
        """How many tokens of it were not read again."""
        body = {"model": "m", "prompt": prompt, "max_tokens": 2, "temperature": 0}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    def said(self, words):
        return [line for line in self.lines if words in line]


@contextmanager
def served(model, folder, home, *, main=MAIN, **limits):
    """A server that keeps one conversation in memory, the others in `folder`; what it said is known at the end."""
    flags = ("--drafter", "none", "--mode", "baseline", "--no-warmup", "--port", "0")
    flags += ("--prefix-cache-dir", str(folder), "--prefix-cache-slots", "1")
    process = subprocess.Popen(
        [sys.executable, "-c", main, "serve", "--model", model, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MLX_DSPARK_HOME": str(home)},
        **limits,
    )
    server = Server(process, process.stdout.readline().split()[-1])
    try:
        eventually(lambda: httpx.get(f"{server.url}/health", timeout=60, trust_env=False).json()["status"] == "ok")
        yield server
    finally:
        process.terminate()
        try:
            server.lines = process.communicate(timeout=30)[1].splitlines()
        finally:
            process.kill()
    assert process.returncode in (0, -signal.SIGKILL)


def eventually(holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def whole(folder):
    return sorted(folder.glob("*.safetensors"))


@pytest.fixture(scope="module")
def killed(model, tmp_path_factory):
    """The folder of a server that was killed while it wrote its second conversation."""
    folder, home = tmp_path_factory.mktemp("kept"), tmp_path_factory.mktemp("home")
    with served(model, folder, home, main=HALF_WAY + MAIN) as server:
        assert server.ask(PROMPTS[0]) == server.ask(PROMPTS[1]) == 0
        eventually(lambda: whole(folder))
        server.ask(PROMPTS[2])
        eventually(lambda: list(folder.glob(".*.part")))
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    return folder


def test_after_kill_minus_9_beside_damaged_and_foreign_files(model, killed, tmp_path):
    """The conversation that was written is there, the half one is nowhere, and what is not used is told in one line."""
    (kept,) = whole(killed)
    assert filing.read(kept)[0]["context_tokens"] == 0
    folder = tmp_path / "kept"
    shutil.copytree(killed, folder)
    (folder / "prefix-cut.safetensors").write_bytes(kept.read_bytes()[:-100])
    (folder / "prefix-junk.safetensors").write_bytes(os.urandom(3000))
    foreign = [filing.Tensor("I32", (3,), np.arange(3, dtype=np.int32))]
    filing.write(folder / "prefix-foreign.safetensors", {"key": {"model": "another"}}, foreign)
    (folder / "notes.txt").write_text("mine")
    with served(model, folder, tmp_path / "home") as server:
        cached = [server.ask(prompt) for prompt in (PROMPTS[0], PROMPTS[1], PROMPTS[0])]
        eventually(lambda: len(whole(folder)) >= 5)
    assert cached[0] > 300 and cached[1] == 0 and cached[2] > 300
    (line,) = server.said("not used")
    assert "3 file(s)" in line and server.said("prefix cache on disk") == []
    assert (folder / "notes.txt").exists() and (folder / "prefix-foreign.safetensors").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of little room, and a way to mount it anew; skipped where none can be mounted."""
    place = tmp_path / "small"
    place.mkdir()

    def mount(options, *more):
        command = ["mount", *more, "-o", options, "tmpfs", str(place)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    if not mount("size=1m", "-t", "tmpfs"):
        pytest.skip("no tmpfs can be mounted here")
    yield place, lambda options: mount(f"remount,{options}")
    subprocess.run(["umount", str(place)], check=False)


def test_a_folder_that_is_read_only_and_then_a_disk_that_is_full(model, killed, small_disk, tmp_path):
    place, remount = small_disk
    shutil.copy(*whole(killed), place)
    assert remount("ro")
    with served(model, place, tmp_path / "home") as server:
        assert server.ask(PROMPTS[0]) > 300, "what is there is used"
        assert [server.ask(prompt) for prompt in PROMPTS[1:3]] == [0, 0]
        assert remount("rw")
        taken = sum(file.stat().st_size for file in whole(place))
        (place / "ballast").write_bytes(bytes(1_000_000 - BYTES_OF_A_FILE - taken))
        seen = [server.ask(prompt) for prompt in (*PROMPTS[3:6], PROMPTS[3], PROMPTS[3])]
        assert seen[:3] == [0, 0, 0] and seen[-1] > 300
    assert server.said("Read-only file system") and server.said("No space left on device")
    assert not list(place.glob(".*.part"))


def test_a_file_that_may_not_grow_as_large_as_it_must(model, tmp_path):
    """The same as a full disk, where nothing can be mounted."""
    folder = tmp_path / "kept"
    least = (50_000, 50_000)
    with served(
        model, folder, tmp_path / "home", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, least)
    ) as server:
        assert [server.ask(prompt) for prompt in PROMPTS[:3]] == [0, 0, 0]
        assert server.ask(PROMPTS[2]) > 300
    assert server.said("cannot be written: File too large")
    assert list(folder.iterdir()) == []
