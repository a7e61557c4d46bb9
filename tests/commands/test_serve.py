"""`mlx-dspark serve` as a user starts it."""

import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import httpx
import pytest
from tiny import write_llama

from dspark.commands import serve
from dspark.commands.app import run
from dspark.errors import EngineBusy, LoadCancelled

MAIN = "from dspark.commands.entry import main; main()"


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path / "home"))


@pytest.fixture
def stopped(monkeypatch):
    """A serve that stops as soon as it serves; what it found is kept."""
    seen = []
    monkeypatch.setattr(serve, "_serve", lambda app, stop, *, no_model: seen.append(app))
    return seen


def started(home, *flags, **environment):
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "serve", "--port", "0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MLX_DSPARK_HOME": str(home), **environment},
    )
    return process, process.stdout.readline().split()[-1]


def test_without_a_model_it_is_small_imports_no_mlx_and_ends_well(tmp_path):
    """Acceptance 5 (RSS under 120 MB), P1 (port 0 prints the chosen one)."""
    import psutil

    process, url = started(tmp_path, "--no-model")
    try:
        assert httpx.get(f"{url}/health", trust_env=False).json()["status"] == "no_model"
        assert httpx.get(f"{url}/openapi.json", trust_env=False).status_code == 200
        memory = psutil.Process(process.pid)
        assert memory.memory_info().rss < 120e6
        if sys.platform == "linux":
            assert not [one.path for one in memory.memory_maps() if "libmlx" in one.path]
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_lines_it_prints_work_as_pasted(tmp_path):
    """P3: with the address that it really has."""
    folder = write_llama(tmp_path / "model")
    process, url = started(tmp_path, "--model", str(folder), "--drafter", "none", "--no-warmup")
    try:
        lines = [process.stdout.readline() for _ in range(5)]
        command = next(line.partition("try it")[2].strip() for line in lines if line.startswith("try it"))
        assert all(url in line for line in lines)
        deadline = time.monotonic() + 60
        while httpx.get(f"{url}/health", trust_env=False).json()["status"] != "ok":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        told = subprocess.run(["sh", "-c", f"{command} --noproxy '*'"], capture_output=True, text=True, timeout=60)
        assert '"model":"model"' in told.stdout and '"choices"' in told.stdout
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.communicate()


def test_a_port_in_use_is_said_before_anything_is_loaded(capsys, monkeypatch):
    """P1: exit code not 0, and a line that helps."""
    from dspark.engine import Engine

    monkeypatch.setattr(Engine, "load", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "in use" in capsys.readouterr().err
    assert run(["serve", "--port", "70000"]) == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_others_are_not_served_without_a_key(capsys, host):
    """O6."""
    assert run(["serve", "--no-model", "--host", host, "--port", "0"]) == 2
    assert "An API key is required when binding to a non-loopback host" in capsys.readouterr().err


def test_with_a_key_all_addresses_are_shown_and_the_key_is_not(capsys, stopped):
    assert run(["serve", "--no-model", "--host", "0.0.0.0", "--port", "0", "--api-key", "sesame-key"]) == 0
    said = capsys.readouterr()
    assert f"http://127.0.0.1:{stopped[0].http.port}" in said.out
    assert "sesame-key" not in said.out + said.err
    assert "--api-key can be seen by other users" in said.err


def test_an_ipv6_address_is_written_in_brackets(capsys, stopped):
    """P3."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    assert run(["serve", "--no-model", "--host", "::1", "--port", "0"]) == 0
    assert re.search(r"http://\[::1\]:\d+/v1", capsys.readouterr().out)


def test_open_inference_is_warned_of(capsys, stopped, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "settings.yaml").write_text("server:\n  allow_unauthenticated_inference: true\n")
    assert run(["serve", "--no-model", "--port", "0", "--api-key", "sesame-key"]) == 0
    assert "allow_unauthenticated_inference is on" in capsys.readouterr().err


def test_a_model_that_cannot_be_had_ends_it_with_the_reason(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert run(["serve", "--port", "0", "--model", str(tmp_path / "empty")]) == 1
    assert "has no config.json" in capsys.readouterr().err
    assert logging.getLogger("dspark")


@pytest.mark.parametrize("error", [LoadCancelled("called off"), EngineBusy("another came first")])
def test_a_first_load_that_a_client_called_off_does_not_end_it(error):
    """The port stays: what it is to serve comes with the next load."""

    class Load:
        def wait(self):
            raise error

    class Stop:
        """Asked for once the load is over, by nobody else."""

        asked = requested = False

        def request(self):
            self.requested = True

        def wait(self):
            for thread in threading.enumerate():
                if thread.name == "dspark-first-load":
                    thread.join()

    app = SimpleNamespace(load=Load, http=SimpleNamespace(url="http://127.0.0.1:1"))
    stop = Stop()
    assert serve._serve(app, stop, no_model=False) is None
    assert not stop.requested


def test_nothing_heavy_is_imported_by_naming_the_command():
    check = (
        "import sys; import dspark.commands.serve, dspark.commands.launch; "
        "print([name for name in ('mlx', 'mlx_lm', 'httpx', 'pydantic', 'psutil', 'numpy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout == "[]\n"
