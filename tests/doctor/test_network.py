"""Reaching the Hub: through its endpoint, in a short time, and never needed."""

import socket

import pytest
from hub.fakehub import FakeHub

from dspark.doctor import network


@pytest.fixture(autouse=True)
def _direct(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_the_endpoint_of_the_environment_is_asked():
    with FakeHub() as hub:
        check = network.hub({"HF_ENDPOINT": hub.url})
    assert (check.status, check.seen) == ("ok", f"{hub.url} answers")


def test_no_network_is_a_warning():
    check = network.hub({"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert check.status == "warn"
    assert "models on disk work" in (check.todo or "")


def test_a_host_that_says_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(network, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        check = network.hub({"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"})
    assert (check.status, "no answer" in check.seen) == ("warn", True)


@pytest.mark.parametrize("endpoint", ["huggingface.co", "ftp://x", "http://[::1", "https://"])
def test_an_endpoint_that_is_no_address(endpoint):
    check = network.hub({"HF_ENDPOINT": endpoint})
    assert check.status == "warn"
    assert "HF_ENDPOINT" in f"{check.todo}"


def test_a_proxy_that_cannot_be_meant(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://me:secret@x")
    check = network.hub({})
    assert check.status == "warn"
    assert "secret" not in str(check)


def test_offline_by_choice_is_well():
    assert network.hub({"HF_HUB_OFFLINE": "1"}).status == "ok"
