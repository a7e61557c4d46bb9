"""Fixtures that several rooms share."""

import logging
import os
from contextlib import contextmanager
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


@pytest.fixture(scope="session")
def unhurried():
    """The looks at a drafter and at costs as a user's load takes them, as a context manager."""
    from dspark.drafters import conventions
    from dspark.tuning import timing

    asked = [(conventions, "_TEXT_TOKENS", conventions._TEXT_TOKENS), (timing, "_ATTEMPTS", timing._ATTEMPTS)]

    @contextmanager
    def as_shipped():
        with pytest.MonkeyPatch.context() as patch:
            for module, name, value in asked:
                patch.setattr(module, name, value)
            yield

    return as_shipped


@pytest.fixture(scope="session", autouse=True)
def _brief_looks(unhurried):
    """Hundreds of loads try their drafter out over a few tokens and time no point again: they are about other things.

    Tests of these looks themselves ask for them `unhurried`.
    """
    from dspark.drafters import conventions
    from dspark.tuning import timing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conventions, "_TEXT_TOKENS", 8)
        patch.setattr(timing, "_ATTEMPTS", 0)
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
