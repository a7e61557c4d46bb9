"""Taking a port, bounded connections, and the end."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import ExitStack

import pytest
from wires import KEY, Wire, eventually, refuses_connections, request_bytes, running

from dspark.errors import UsageError
from dspark.server.transport import bind


def test_port_zero_gives_the_chosen_one():
    """P1"""
    server = bind("127.0.0.1", 0)
    assert server.port > 0
    assert server.url == f"http://127.0.0.1:{server.port}"
    server.stop()


@pytest.mark.parametrize("listening_on", ["127.0.0.1", "0.0.0.0"])
def test_a_busy_port_is_said_at_once(listening_on):
    """P1"""
    with socket.create_server((listening_on, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is in use.*--port"):
            bind("127.0.0.1", port)


def test_a_port_is_free_again_as_soon_as_the_server_has_stopped():
    with running() as served:
        port = served.port
        with Wire(port) as wire:
            wire.ask()
    bind("127.0.0.1", port).stop()


@pytest.mark.parametrize("port", [70000, 65536, -1])
def test_a_port_that_there_is_not_is_refused(port):
    """P1"""
    with pytest.raises(UsageError, match="from 1 to 65535"):
        bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "", "256.1.1.1", "a b", "x" * 300, "203.0.113.7"])
def test_a_host_that_is_not_ours_is_refused(host):
    """P1"""
    with pytest.raises(UsageError, match=r"127\.0\.0\.1"):
        bind(host, 0, protected=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::ffff:0.0.0.0"])
def test_other_machines_are_not_served_without_a_key(host):
    """O6"""
    with pytest.raises(UsageError, match="An API key is required when binding to a non-loopback host"):
        bind(host, 0)
    bind(host, 0, protected=True).stop()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.5", "localhost", "LOCALHOST", "::1", "[::1]", "::ffff:127.0.0.1"]
)
def test_this_machine_is_served_without_a_key(host):
    """O6"""
    server = bind(host, 0)
    assert server.loopback
    server.stop()


def test_ipv6_is_served_and_written_in_brackets():
    """P3"""
    with running(host="::1") as served, Wire(served.port, "::1") as wire:
        assert served.server.url == f"http://[::1]:{served.port}"
        assert wire.send(request_bytes("GET", "/models", Host=f"[::1]:{served.port}")).answer().status == 200


def test_all_addresses_are_both_kinds_of_addresses():
    with running(host="::", key=KEY) as served:
        for host in ("127.0.0.1", "::1"):
            with Wire(served.port, host) as wire:
                assert wire.ask("GET", "/models", x_api_key=KEY).status == 200
        assert [request.client for request in served.probe.requests] == ["127.0.0.1", "::1"]


def test_the_addresses_shown_are_real_ones():
    """O6, P3: each can be connected to; none is the wildcard."""
    with running(host="0.0.0.0", key=KEY) as served:
        urls = served.server.urls()
        assert urls[0] == f"http://127.0.0.1:{served.port}"
        for url in urls:
            host = url.removeprefix("http://").rpartition(":")[0]
            with Wire(served.port, host) as wire:
                assert wire.ask("GET", "/health", Host=host).status == 200


def test_one_connection_too_many_is_refused_while_all_are_at_work():
    with running(connections_limit=2) as served, ExitStack() as stack:
        wires = [stack.enter_context(Wire(served.port)) for _ in range(2)]
        for wire in wires:
            wire.send(request_bytes("GET", "/wait"))
        assert eventually(lambda: len(served.probe.requests) == 2)
        with Wire(served.port) as wire:
            answered = wire.ask()
            assert (answered.status, answered.headers["Retry-After"]) == (503, "1")
            assert json.loads(answered.body)["error"]["type"] == "overloaded_error"
        served.probe.release.set()
        assert [wire.answer().status for wire in wires] == [200, 200]


def test_a_connection_that_idles_makes_room_for_a_new_one():
    with running(connections_limit=2) as served, ExitStack() as stack:
        wires = []

        def served_over_one_more():
            wire = stack.enter_context(Wire(served.port))
            if wire.ask().status == 503:  # the one before has its answer and does not idle yet
                return False
            wires.append(wire)
            return True

        for _ in range(5):
            assert eventually(served_over_one_more)
        assert wires[0].closed()
        assert wires[-1].ask().status == 200


def test_headers_that_never_end_hold_no_place():
    """O7: slow loris in the headers."""
    with running(connections_limit=2) as served, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(Wire(served.port)).send(b"GET / HTTP/1.1\r\nX: ")
        with Wire(served.port) as wire:
            assert wire.ask().status == 200


def test_what_is_being_answered_is_finished_before_the_end():
    with running() as served, Wire(served.port) as busy, Wire(served.port) as idle:
        idle.ask()
        busy.send(request_bytes("GET", "/endless"))
        busy.head()
        assert busy.chunk() == b"data: begun\n\n"
        ended = []
        stopping = threading.Thread(target=lambda: ended.append(served.server.stop(finish_s=20.0)))
        stopping.start()
        assert idle.closed()
        assert eventually(lambda: refuses_connections(served.port))
        served.probe.release.set()
        assert [busy.chunk(), busy.chunk()] == [b"data: ended\n\n", b""]
        stopping.join(10.0)
        assert ended == [True]


def test_what_does_not_finish_is_cancelled_and_may_say_so():
    with running() as served, Wire(served.port) as wire:
        wire.send(request_bytes("GET", "/endless"))
        assert eventually(lambda: served.probe.requests)
        assert served.server.stop(finish_s=0.0, cancel=served.probe.release.set)
        assert wire.answer().body.endswith(b"data: ended\n\n")


def test_what_cannot_be_cancelled_is_cut():
    with running() as served, Wire(served.port) as wire:
        wire.send(request_bytes("GET", "/endless"))
        assert eventually(lambda: served.probe.requests)
        assert not served.server.stop(finish_s=0.0)
        assert served.probe.noticed.is_set()
        assert not wire.answer().whole


def test_the_transport_needs_nothing_heavy():
    heavy = (
        "mlx",
        "mlx_lm",
        "transformers",
        "numpy",
        "huggingface_hub",
        "httpx",
        "pydantic",
        "psutil",
        "rich",
        "typer",
    )
    program = f"""
        import sys
        from dspark.server import auth, body, lifecycle, routing, sse, transport
        print([name for name in {heavy} if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "[]\n"
