import os

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty home folder, no network, and no variable of the caller's."""
    folder = tmp_path / "maria"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith(("HF_", "MLX_", "OPENBLAS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder
