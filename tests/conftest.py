"""Fixtures that several rooms share."""

import logging
import os
from pathlib import Path

import pytest

REFERENCE_HEADS = Path(os.environ.get("MLX_DSPARK_REFERENCE_HEADS", Path(__file__).parents[2] / "shared" / "models"))


@pytest.fixture(scope="session", autouse=True)
def _own_drafter_memory(tmp_path_factory):
    """What tests find out about their drafters is not for the user's home."""
    from dspark import pair

    with pytest.MonkeyPatch.context() as patch:
        memory = tmp_path_factory.mktemp("memory") / "drafters.json"
        patch.setattr(pair, "drafter_memory", lambda: memory)
        yield


@pytest.fixture(autouse=True)
def _logger_as_imported():
    """A command run in this process sets up logging; the next test starts without it."""
    yield
    logger = logging.getLogger("dspark")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def reference_heads() -> Path:
    """The folder of reference heads with their fixtures, which is too large to keep here."""
    if not REFERENCE_HEADS.is_dir():
        pytest.skip(
            f"no reference heads at {REFERENCE_HEADS} (MLX_DSPARK_REFERENCE_HEADS); the shipped head is tested anyway"
        )
    return REFERENCE_HEADS


@pytest.fixture(scope="session")
def demo_engine():
    """The demo pair in float32, loaded once."""
    from dspark.engine import Engine, LoadOptions

    engine = Engine()
    engine.load(LoadOptions(precision="fp32"))
    return engine
