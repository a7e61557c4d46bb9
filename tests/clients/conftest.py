"""One server a pair, for the clients that people use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

KEY = "the-key-of-the-tests"


def pytest_collection_modifyitems(items):
    """Whatever lies here is about clients."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Iterator["Served"]:  # noqa: F821
    """A server with a random pair, behind a key, speculating."""
    from serveprocess import serving, write_pair

    root = tmp_path_factory.mktemp("clients")
    target, drafter = write_pair(root)
    flags = ("--model", target, "--drafter", drafter, "--mode", "dspark", "--max-draft", "3", "--no-enable-thinking")
    with serving(root / "home", *flags, key=KEY) as served:
        yield served


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Iterator["Served"]:  # noqa: F821
    """A fresh server with the demo pair, as the README starts it; settings that a variable can hold are for speed."""
    from serveprocess import SERVE, serving

    from dspark.hub import demo as pair

    home = tmp_path_factory.mktemp("demo") / "home"
    (home / "models").mkdir(parents=True)
    fetched = pair.target("fp32")
    (home / "models" / fetched.name).symlink_to(fetched)
    known = {"PRECISION": "fp32", "MODE": "dspark", "MAX_DRAFT": "2"}
    with serving(home, *SERVE, **{f"MLX_DSPARK_{name}": value for name, value in known.items()}) as served:
        yield served
