"""Raw bytes at the socket, well and badly meant: the server lives, grows no larger, and serves the next request."""

import logging
import socket
import struct
from contextlib import suppress

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wires import Wire, eventually, request_bytes, running

from dspark.server import connection, framing

SMUGGLED = request_bytes("GET", "/models/smuggled")

# Each leaves it open where the request ends, or is read differently by somebody.
TWO_MEANINGS = [
    b"Content-Length: %(length)d\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: %(length)d",
    b"Content-Length: 0\r\nContent-Length: %(length)d",
    b"Content-Length: %(length)d\r\nContent-Length: %(length)d",
    b"Content-Length: 0, %(length)d",
    b"Content-Length: +%(length)d",
    b"Content-Length: 0x%(length)x",
    b"Content-Length: 0_0",
    b"Content-Length: \xb2",
    b"Content-Length : 0",
    b"Content-Length\t: 0",
    b"X: y\r\n Content-Length: %(length)d",
    b"X: y\r\n\tfolded",
    b" Content-Length: 0",
    b"Content-Length: 0\x00",
    b"X: a\x00b",
    b"X: a\rContent-Length: 0",
    b"X: a\nContent-Length: 0",
    b"X: a\n\nGET /models/smuggled HTTP/1.1\r\nHost: localhost",
    b"X: a\r\r\nContent-Length: 0",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    b"Transfer-Encoding:",
    b"Transfer-Encoding : chunked",
    b"Transfer\x00-Encoding: chunked",
]
CHUNKS = [
    b"ffffffffffffffff\r\n",
    b"fffffffffffffffff\r\n",
    b"7fffffff\r\nabc",
    b"-1\r\n",
    b"0x0\r\n\r\n",
    b"3\r\nabcd\r\n0\r\n\r\n",
    b"3\nabc\r\n0\r\n\r\n",
    b"3\r\nabc\n0\r\n\r\n",
    b"0\n\n",
    b"0\r\n\n",
    b"0\r\nX: a\nb\r\n\r\n",
    b"0\r\n folded\r\n\r\n",
    b"3;\x00\r\nabc\r\n0\r\n\r\n",
]


@pytest.fixture(scope="module")
def served():
    with running() as served:
        yield served


@pytest.fixture(scope="module")
def hasty():
    """A server that waits for nothing for long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "HEAD_SECONDS", 0.02)
        patch.setattr(framing, "PROGRESS_SECONDS", 0.02)
        patch.setattr(connection, "HEAD_SECONDS", 0.1)
        patch.setattr(connection, "IDLE_SECONDS", 0.02)
        patch.setattr(connection, "_LINGER_SECONDS", 0.02)
        with running() as hasty:
            yield hasty


def answers(wire):
    """The status of every answer, each of which is well formed, until the server closes."""
    statuses = []
    try:
        while True:
            answered = wire.answer()
            assert answered.whole
            statuses.append(answered.status)
    except ConnectionError:
        return statuses


@pytest.mark.parametrize("method", [b"POST", b"GET"])
@pytest.mark.parametrize("header", TWO_MEANINGS)
def test_a_request_with_two_meanings_smuggles_nothing(served, method, header):
    fields = header % {b"length": len(SMUGGLED)} if b"%(" in header else header
    with Wire(served.port) as wire:
        wire.send(method + b" /messages HTTP/1.1\r\nHost: localhost\r\n" + fields + b"\r\n\r\n" + SMUGGLED)
        assert answers(wire) == [400]
    assert not any(request.path == "/models/smuggled" for request in served.probe.requests)


@pytest.mark.parametrize("chunks", CHUNKS)
def test_chunks_with_two_meanings_smuggle_nothing(served, chunks):
    with Wire(served.port) as wire:
        head = b"POST /messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        wire.send(head + chunks + SMUGGLED)
        assert answers(wire) in ([400], [413])
    assert not any(request.path == "/models/smuggled" for request in served.probe.requests)


lines = st.sampled_from(
    [
        b"GET /health HTTP/1.1",
        b"POST /v1/messages HTTP/1.1",
        b"POST /parse HTTP/1.1",
        b"HEAD /models HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"GET /count HTTP/1.1",
        b"GET http://localhost/health HTTP/1.0",
        b"Host: localhost",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Expect: 100-continue",
        b"Content-Length: 0",
        b"Content-Length: 5",
        b"Content-Length: 99999999999999",
        b"Transfer-Encoding: chunked",
        b"Origin: http://evil.example",
        b"Upgrade: h2c",
        b"5",
        b"hello",
        b"0",
        b'{"a": NaN}',
        b"",
        b"",
    ]
)
ends = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r", b"\r\r\n", b"\x00", b""])
texts = st.lists(st.tuples(lines, ends).map(b"".join), max_size=14).map(b"".join)
whole = st.sampled_from(
    [request_bytes(), request_bytes("POST", "/messages", b"hello"), request_bytes("GET", "/count"), SMUGGLED]
)
pieces = st.lists(st.one_of(texts, whole, st.binary(max_size=60)), min_size=1, max_size=5)


@given(pieces=pieces, ending=st.sampled_from(["wait", "half-closed", "closed", "reset"]))
@settings(max_examples=1000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def fuzz(hasty, pieces, ending):
    with Wire(hasty.port) as wire:
        try:
            for piece in pieces:
                wire.send(piece)
        except ConnectionError:
            pass  # the server has had enough
        if ending == "half-closed":
            with suppress(OSError):
                wire.socket.shutdown(socket.SHUT_WR)
        if ending == "reset":
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if ending in ("wait", "half-closed"):
            assert 500 not in answers(wire)
    assert eventually(lambda: answers_health(hasty))


def answers_health(served):
    """On a busy machine even this client may be too slow for a hasty server."""
    with Wire(served.port) as wire, suppress(ConnectionError):
        return wire.ask().status == 200


def test_a_thousand_conversations_of_all_kinds(hasty, caplog):
    with caplog.at_level(logging.WARNING):
        fuzz(hasty)
    assert not caplog.records


def test_bodies_that_never_come_leave_nothing_behind(served):
    promise = b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000000\r\n\r\n" + bytes(65536)

    def leave_off(times):
        for _ in range(times):
            with Wire(served.port) as wire, suppress(ConnectionError):
                wire.send(promise)
        assert eventually(lambda: served.server.pool.wait_empty(0.0))
        return psutil.Process().memory_info().rss

    before = leave_off(50)
    assert leave_off(500) - before < 16 << 20
