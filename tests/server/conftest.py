"""A tiny pair on disk, shared by all tests of a whole server."""

import pytest


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """The folders of a target and its drafter."""
    from live import write_drafter, write_target

    root = tmp_path_factory.mktemp("served")
    return write_target(root / "tiny-target"), write_drafter(root / "tiny-head")


@pytest.fixture(scope="module")
def own_home(tmp_path_factory):
    """A home of this tool's own, so that no file of the user's counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLX_DSPARK_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def live(pair, own_home):
    """A server with the pair loaded, speculating with a fixed draft."""
    from live import served

    with served(model=pair[0], drafter=pair[1], mode="dspark", max_draft=3) as running:
        yield running
