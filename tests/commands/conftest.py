"""What tests of commands share."""

import os
import sys

import pytest


@pytest.fixture
def light_mlx_lm(tmp_path_factory, monkeypatch):
    """An mlx-lm that is imported at once where the doctor tries it out, which takes half of its time."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "mlx_lm.py").touch()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
