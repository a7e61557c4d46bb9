import os

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty home folder, and no variable of ours."""
    for variable in [name for name in os.environ if name.startswith("MLX_DSPARK_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".mlx-dspark").mkdir()
    return tmp_path


@pytest.fixture
def write(home):
    """Write the settings file."""

    def written(text):
        file = home / ".mlx-dspark" / "settings.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return written
