"""The port and the server there: asked, with the key that a client would use."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dspark.doctor.port import Address, port_and_server

READY = {"status": "ok", "model": "qwen3-8b", "mode": "dspark", "drafter": "a/head", "warnings": []}
KEY = "secret-key"


@pytest.fixture
def serve():
    """Start something on a free port that answers /health and, for the right key, /v1/models; returns its address."""
    servers = []

    def start(health, status=200, key=None, refusal=401):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/health":
                    return self.answer(status, health)
                right = key is None or self.headers.get("Authorization") == f"Bearer {key}"
                return self.answer(200, {"data": []}) if right else self.answer(refusal, {"error": {}})

            def answer(self, code, value):
                body = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        return Address(port=server.server_port)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def asked(address, key=None):
    return {check.id: check for check in port_and_server(address, key)}


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_a_free_port():
    address = Address(port=free_port())
    found = asked(address, KEY)
    assert {name: check.status for name, check in found.items()} == {"port": "ok", "server": "ok"}
    assert f"{address.port} is free" in found["port"].seen


def test_n3_the_model_that_the_server_says_it_runs(serve):
    found = asked(serve(READY))
    assert found["server"].seen.endswith("runs qwen3-8b, mode dspark, drafter a/head")
    assert found["port"].status == found["server.key"].status == "ok"
    assert "pid" in found["port"].seen


def test_n3_a_key_that_is_set_but_wrong_is_broken(serve):
    address = serve(READY, key=KEY)
    assert asked(address, KEY)["server.key"].status == "ok"
    wrong = asked(address, "another-key")["server.key"]
    assert wrong.status == "fail"
    assert "another-key" not in str(wrong)


def test_a_server_that_wants_a_key_when_none_is_set(serve):
    assert asked(serve(READY, key=KEY))["server.key"].status == "warn"


@pytest.mark.parametrize("key", ["line\nbreak", "schlüssel", "two words"])
def test_a_key_that_no_header_can_carry(serve, key):
    assert asked(serve(READY), key)["server.key"].status == "fail"


def test_locked_out(serve):
    assert "locked" in asked(serve(READY, key=KEY, refusal=429), "another")["server.key"].seen


@pytest.mark.parametrize(
    ("health", "status", "verdict", "word"),
    [
        ({"status": "no_model"}, 200, "ok", "no model"),
        ({"status": "loading", "phase": "downloading"}, 200, "ok", "downloading"),
        (READY | {"warnings": ["the window does not fit"]}, 200, "warn", "the window does not fit"),
        (READY | {"status": "dead"}, 503, "fail", "503"),
    ],
)
def test_states_of_the_server(serve, health, status, verdict, word):
    found = asked(serve(health, status))["server"]
    assert found.status == verdict
    assert word in found.seen


@pytest.mark.parametrize("health", [{"status": "ok"}, b"<html>", b"", [1], b"[" * 100_000, b"x" * (2 << 20)])
def test_another_program_on_the_port_gets_no_key(serve, health):
    found = asked(serve(health), KEY)
    assert found["port"].status == "warn"
    assert "taken by" in found["port"].seen
    assert "server.key" not in found


def test_a_proxy_of_the_environment_is_passed_by(serve, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert asked(serve(READY))["server"].status == "ok"


def test_addresses_to_ask():
    assert Address("0.0.0.0", 8123).url == "http://127.0.0.1:8123"
    assert Address("::", 8123).url == "http://[::1]:8123"
    assert Address("mac.local").url == "http://mac.local:8080"
