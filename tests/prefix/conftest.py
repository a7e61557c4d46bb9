"""The tiny pairs, written once; and a limit below which conversations count as tiny that suits them."""

import pytest
from prefix.pairs import Home

from dspark.prefix import cache


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    return Home(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(autouse=True)
def _nothing_is_tiny(monkeypatch):
    monkeypatch.setattr(cache, "TINY_TOKENS", 8)
    monkeypatch.setattr(cache, "_LEAST_READ_TOKENS", 8)
