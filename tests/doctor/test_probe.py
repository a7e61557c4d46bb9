"""Trying MLX out in another process: what goes wrong there is told, and nothing of ours goes with it."""

import sys

import pytest

from dspark.doctor import probe


@pytest.fixture
def shadow(tmp_path, monkeypatch):
    """Puts a module of the test's in the way of a real one."""

    def put(name: str, body: str) -> None:
        folder = tmp_path / "shadow"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(body)
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])

    return put


def test_a_sound_installation():
    stack = probe.look()
    assert stack.runtime.device in ("cpu", "gpu")
    assert (stack.compute_error, stack.mlx_lm_error) == (None, None)


def test_mlx_that_greets_and_fails(shadow):
    shadow("mlx", "print('hello'); raise ImportError('libmlx.so is missing')")
    stack = probe.look()
    assert stack.runtime.mlx_error == "ImportError: libmlx.so is missing"
    assert stack.runtime.device is None


def test_mlx_that_takes_its_process_along(shadow):
    shadow("mlx", "import os; os.abort()")
    stack = probe.look()
    assert stack.runtime.mlx_error == "the process crashed with SIGABRT"
    assert stack.runtime.python


def test_mlx_that_never_comes_back(shadow):
    shadow("mlx", "import time; time.sleep(60)")
    assert probe.look(timeout_s=2).runtime.mlx_error == "it took longer than 2 s"


def test_l7_mlx_lm_that_fails_leaves_mlx_well(shadow):
    shadow("mlx_lm", "from transformers import a_name_that_moved")
    stack = probe.look()
    assert stack.runtime.mlx_error is None
    assert "a_name_that_moved" in (stack.mlx_lm_error or "")


def test_no_interpreter_to_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "could be started" in (probe.look().runtime.mlx_error or "")
