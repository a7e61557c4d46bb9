"""The stamp says what was measured on, and nothing about whose machine it was."""

import getpass
import json
import socket
import subprocess
from pathlib import Path

import pytest

from dspark import __version__, machine
from dspark.machine.provenance import revision


@pytest.fixture(scope="module")
def stamp() -> dict[str, object]:
    return machine.stamp()


def test_stamp_names_machine_and_versions(stamp: dict[str, object]) -> None:
    assert stamp["mlx_dspark"] == __version__
    assert {
        "date",
        "chip",
        "cores",
        "gpu_cores",
        "memory_bytes",
        "os",
        "python",
        "mlx",
        "mlx_lm",
        "blas",
        "git",
    } <= set(stamp)
    assert str(stamp["date"]).endswith("+00:00")


def test_stamp_is_impersonal(stamp: dict[str, object]) -> None:
    text = json.dumps(stamp)
    assert str(Path.home()) not in text
    assert "/" not in text.replace("GNU/Linux", "")
    for name in (socket.gethostname(), getpass.getuser()):
        assert name not in [word for value in stamp.values() for word in str(value).split()]


def test_revision(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert revision(tmp_path) is None
    git("init", "-q")
    assert revision(tmp_path) is None
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    assert revision(tmp_path) == git("rev-parse", "--short", "HEAD")
    (tmp_path / "file").write_text("two")
    assert revision(tmp_path) == git("rev-parse", "--short", "HEAD") + "-dirty"
    (tmp_path / "inner").mkdir()
    assert revision(tmp_path / "inner") is None  # somebody else's repository around an installed package
