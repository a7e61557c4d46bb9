import pytest
from fakehub import FakeHub

VARIABLES = """
HF_ENDPOINT HF_HOME HF_HUB_CACHE HF_HUB_OFFLINE HF_TOKEN HUGGINGFACE_HUB_CACHE TRANSFORMERS_OFFLINE XDG_CACHE_HOME
MLX_DSPARK_DEMO_WHEEL MLX_DSPARK_HOME MLX_DSPARK_MODEL_DIRS MLX_DSPARK_TRUST_REMOTE_CODE
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty home folder, and no variable that points elsewhere."""
    folder = tmp_path / "home"
    folder.mkdir()
    for variable in VARIABLES.split():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    return folder


@pytest.fixture
def hub(monkeypatch):
    """A Hugging Face Hub on the loopback interface."""
    with FakeHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
