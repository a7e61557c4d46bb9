"""The client of a running server, against one that answers by the contract."""

import pytest
from contractserver import READY, ContractServer, refused

from dspark import client
from dspark.client import Client
from dspark.errors import DSparkError, EngineBusy, ModelNotFound, NetworkError, StorageError, UsageError

LOADING = {"status": "loading", "phase": "downloading", "download": {"repo": "org/m", "bytes_done": 1}}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(client, "POLL_SECONDS", 0.0)


def load(server, key=None, **body):
    with Client(server.url + "/v1/", key) as asking:
        return list(asking.load({"model": "org/m", **body}))


def test_a_load_is_followed_to_its_end():
    with ContractServer(LOADING, {"status": "loading", "phase": "warming_up"}, READY) as server:
        assert [health.get("phase") for health in load(server, kv_bits=0)] == ["downloading", "warming_up", None]
    assert server.body == {"model": "org/m", "kv_bits": 0}


def test_the_key_goes_along():
    with ContractServer(key="sesame") as server:
        assert load(server, "sesame")[-1] == READY
        with pytest.raises(UsageError, match="Invalid API key; give the server's key by --api-key-file"):
            load(server, "wrong")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, UsageError),
        (404, ModelNotFound),
        (409, EngineBusy),
        (422, UsageError),
        (500, DSparkError),
        (507, StorageError),
    ],
)
def test_a_refusal_keeps_the_servers_words(status, kind):
    with ContractServer(refusal=refused(status, "no such\nthing")) as server, pytest.raises(kind) as raised:
        load(server)
    assert str(raised.value) == "the server refuses: no such thing"


def test_a_load_that_fails_says_why():
    with (
        ContractServer(LOADING, {"status": "no_model"}, error="no room") as server,
        pytest.raises(DSparkError, match="could not load org/m: no room"),
    ):
        load(server)


@pytest.mark.parametrize("state", [{"status": "no_model"}, {"status": "dead", "code": 503}])
def test_a_load_that_ends_without_a_model_is_an_error_and_no_loop(state):
    with ContractServer(state) as server, pytest.raises(DSparkError, match="look into its log"):
        load(server)


@pytest.mark.parametrize("answer", [(200, b"<html>"), (202, b"[1]"), (404, b"nothing here"), (302, b"")])
def test_another_server_is_told_apart(answer):
    with ContractServer(refusal=answer) as server, pytest.raises(NetworkError, match="no mlx-dspark server"):
        load(server)


@pytest.mark.parametrize("models", [[{"id": "llama", "object": "model"}], [{"id": 5, "context_window": 4096}]])
def test_another_server_that_answers_in_json_is_told_apart(models):
    """As those of other programs for the same clients do."""
    with ContractServer({"ok": True}) as server, Client(server.url) as asking:
        server.models = models
        for question in (asking.model, lambda: asking.seen(1), lambda: load(server)):
            with pytest.raises(NetworkError, match="no mlx-dspark server"):
                question()


def test_nobody_listening_is_one_line():
    with ContractServer() as server:
        pass
    with pytest.raises(NetworkError, match="start a server with 'mlx-dspark serve'"):
        load(server)


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8080", "ftp://x", "http://", "http://x:99999", "http://k:s@x", "http://x/?a=b", "http://[::1"),
        *("http://a..b/", f"http://{'a' * 70}.org", "http://\0x", "http://xn--\u00e9"),
    ],
)
def test_what_is_no_address_is_refused_before_anything_is_sent(url):
    with pytest.raises(UsageError):
        Client(url)


def test_a_key_that_no_header_can_carry_is_refused_before_anything_is_sent():
    with pytest.raises(UsageError, match="no header can carry"):
        Client("http://127.0.0.1:1", "s\u00e9same")


def test_a_proxy_is_not_asked_for_this_machines_own_addresses(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with ContractServer() as server:
        assert load(server)[-1] == READY


@pytest.mark.parametrize("answer", [b'{"status": NaN}', b'{"status": "ready", "x": -Infinity}'])
def test_what_is_no_json_is_not_taken_for_it(answer):
    with ContractServer(refusal=(200, answer)) as server, pytest.raises(NetworkError, match="does not answer in JSON"):
        load(server)


def test_a_line_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(client, "_ANSWER_BYTES", 1000)
    with Client("http://127.0.0.1:1", None) as asking:
        lines = asking._lines(iter([b"data: {}\nda", b"ta: 1\n", *[b"a" * 300] * 5]), "/admin/race")
        assert [next(lines), next(lines)] == [b"data: {}", b"data: 1"]
        with pytest.raises(NetworkError, match="a line without end"):
            next(lines)
