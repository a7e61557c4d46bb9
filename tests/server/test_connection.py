"""One connection, as a client on the other side of the socket sees it."""

import json
import logging
import os
import socket
import struct
import threading

import psutil
import pytest
from wires import KEY, Wire, eventually, request_bytes, running

from dspark.server import connection, framing


@pytest.fixture(scope="module")
def served():
    with running() as server:
        yield server


@pytest.fixture
def wire(served):
    with Wire(served.port) as wire:
        yield wire


@pytest.fixture
def protected():
    with running(key=KEY) as server:
        yield server


def test_requests_follow_each_other_on_one_connection(wire):
    for number in range(3):
        answered = wire.ask("POST", "/v1/chat/completions", b"x" * number)
        assert (answered.status, json.loads(answered.body)["length"]) == (200, number)
        assert "Connection" not in answered.headers


def test_a_connection_closes_when_the_client_wants_it(wire):
    assert wire.ask(Connection="close").headers["Connection"] == "close"
    assert wire.closed()


def test_http_1_0_closes_unless_asked_to_stay(served):
    with Wire(served.port) as wire:
        assert wire.send(b"GET /health HTTP/1.0\r\n\r\n").answer().status == 200
        assert wire.closed()
    with Wire(served.port) as wire:
        for _ in range(2):
            wire.send(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert wire.answer().headers["Connection"] == "keep-alive"


def test_pipelined_requests_are_answered_in_order(wire):
    wire.send(request_bytes("POST", "/messages", b"abc") + request_bytes() + request_bytes("GET", "/models/a/b"))
    assert [json.loads(wire.answer().body)["path"] for _ in range(3)] == ["/messages", "/health", "/models/a/b"]


def test_head_is_get_without_the_body(wire):
    whole = wire.ask("GET", "/models")
    head = wire.ask("HEAD", "/models")
    assert (head.status, head.headers["Content-Length"]) == (200, whole.headers["Content-Length"])
    assert wire.ask().status == 200


def test_head_of_a_stream_does_not_stream(wire):
    assert wire.ask("HEAD", "/endless").headers["Content-Type"] == "text/event-stream"
    assert wire.ask().status == 200


def test_chunked_requests_are_read(wire):
    head = b"POST /messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire.send(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert json.loads(wire.answer().body)["length"] == 5
    assert wire.ask().status == 200


def test_a_body_is_called_for_where_the_client_waits(wire):
    wire.send(b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert wire.answer().status == 100
    assert json.loads(wire.send(b"hi").answer().body)["length"] == 2


@pytest.mark.parametrize(("length", "key", "status"), [(3, "wrong", 401), (framing.BODY_LIMIT_BYTES + 1, KEY, 413)])
def test_a_body_is_not_called_for_where_the_request_is_refused(protected, length, key, status):
    with Wire(protected.port) as wire:
        wire.send(
            b"POST /messages HTTP/1.1\r\nHost: localhost\r\nx-api-key: %b\r\nContent-Length: %d\r\n"
            b"Expect: 100-continue\r\n\r\n" % (key.encode(), length)
        )
        assert wire.answer().status == status
        assert wire.closed()


def test_a_refused_request_leaves_nothing_for_the_next(protected):
    smuggled = request_bytes("GET", "/models", x_api_key=KEY)
    with Wire(protected.port) as wire:
        assert wire.ask("POST", "/messages", smuggled).status == 401
        assert json.loads(wire.ask("GET", "/health").body)["path"] == "/health"


@pytest.mark.parametrize("framing_header", ["Transfer-Encoding: chunked", "Content-Length: 3000000"])
def test_a_refused_request_with_much_to_come_ends_the_connection(protected, framing_header):
    head = f"POST /messages HTTP/1.1\r\nHost: localhost\r\n{framing_header}\r\n\r\n"
    with Wire(protected.port) as wire:
        wire.send(head.encode() + b"x" * 3_000_000)
        answered = wire.answer()
        assert (answered.status, answered.headers["Connection"]) == (401, "close")
        assert wire.closed()


def test_a_post_without_a_body_says_what_is_missing(served):
    with Wire(served.port) as wire:
        assert wire.ask("POST", "/chat/completions").status == 411
        assert wire.closed()
    with Wire(served.port) as wire:
        assert wire.ask("POST", "/admin/unload").status == 200


def test_a_body_above_the_limit_is_refused_before_it_is_read(served):
    with Wire(served.port) as wire:
        length = framing.BODY_LIMIT_BYTES + 1
        wire.send(b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length)
        answered = wire.answer()
        assert answered.status == 413
        assert json.loads(answered.body)["error"]["type"] == "request_too_large"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"BAD\r\n\r\n", 400),
        (b"GET / HTTP/1.1\n\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (65 << 10) + b"\r\n\r\n", 431),
        (b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)
def test_bad_framing_is_answered_and_ends_the_connection(served, sent, status):
    with Wire(served.port) as wire:
        answered = wire.send(sent).answer()
        assert answered.status == status
        assert json.loads(answered.body)["error"]["type"] == "invalid_request_error"
        assert answered.headers["x-request-id"]
        assert wire.closed()


def test_slow_headers_and_bodies_get_408(served, monkeypatch):
    """O7"""
    monkeypatch.setattr(framing, "HEAD_SECONDS", 0.05)
    with Wire(served.port) as wire:
        assert wire.send(b"GET / HT").answer().status == 408
    monkeypatch.setattr(framing, "PROGRESS_SECONDS", 0.05)
    with Wire(served.port) as wire:
        wire.send(b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nab")
        assert wire.answer().status == 408
        assert wire.closed()


def test_a_client_that_says_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.05)
    with running() as served:
        with Wire(served.port) as wire:
            assert wire.closed()
        with Wire(served.port) as wire:
            assert wire.ask().status == 200
            assert wire.closed()


def test_half_closed_clients_get_their_answers(served):
    with Wire(served.port) as wire:
        wire.send(request_bytes("POST", "/messages", b"hi") + request_bytes())
        wire.socket.shutdown(socket.SHUT_WR)
        assert [wire.answer().status, wire.answer().status] == [200, 200]
        assert wire.closed()


def test_the_request_id_is_kept_where_it_is_sane(wire):
    assert wire.ask(x_request_id="mine-1.2_3").headers["x-request-id"] == "mine-1.2_3"
    for insane in ("a b", "x" * 300, "é", '"', "", "-"):
        given = wire.ask(x_request_id=insane).headers["x-request-id"]
        assert given.startswith("req_")
        assert given != insane


def test_a_stream_is_sent_chunk_by_chunk_and_the_connection_goes_on(wire):
    answered = wire.ask("GET", "/count")
    assert answered.headers["Content-Type"] == "text/event-stream"
    assert (answered.body.decode(), answered.whole) == ("data: 1\n\ndata: é\n\ndata: 3\n\n", True)
    assert wire.ask().status == 200


def test_a_stream_to_http_1_0_ends_with_the_connection(wire):
    answered = wire.send(b"GET /count HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").answer()
    assert "Transfer-Encoding" not in answered.headers
    assert answered.body.endswith(b"data: 3\n\n")


def test_a_stream_that_breaks_is_seen_to_be_cut(wire, caplog):
    with caplog.at_level(logging.ERROR, "dspark.server"):
        answered = wire.ask("GET", "/broken")
    assert (answered.body, answered.whole) == (b"data: 1\n\n", False)
    assert "secret detail" in caplog.text


def leave(wire):
    wire.close()


def reset(wire):
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def leave_after_asking_for_more(wire):
    wire.send(request_bytes())
    wire.close()


@pytest.mark.parametrize("go", [leave, reset, leave_after_asking_for_more])
@pytest.mark.parametrize("path", ["/wait", "/endless"])
def test_a_handler_that_has_nothing_to_send_notices_a_vanished_client(path, go):
    """J3: before the first byte, and in a silent stream."""
    with running() as served:
        wire = Wire(served.port)
        wire.send(request_bytes("GET", path))
        assert eventually(lambda: served.probe.requests)
        assert not served.probe.noticed.wait(0.1)
        go(wire)
        assert served.probe.noticed.wait(2.0)


def test_a_stream_is_closed_when_the_client_vanishes_in_the_middle():
    with running() as served:
        wire = Wire(served.port)
        wire.send(request_bytes("GET", "/chatter"))
        wire.head()
        wire.chunk()
        wire.close()
        assert served.probe.closed.wait(2.0)


def test_a_reader_that_does_not_read_is_given_up(monkeypatch, caplog):
    """D12"""
    monkeypatch.setattr(connection, "SEND_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "dspark.server")
    with running() as served, Wire(served.port) as wire:
        wire.send(request_bytes("GET", "/chatter"))
        assert served.probe.closed.wait(5.0)
        assert eventually(lambda: caplog.text.rstrip().endswith("broken off"))


def test_a_defect_is_told_to_the_log_and_not_to_the_client(wire, caplog):
    with caplog.at_level(logging.ERROR, "dspark.server"):
        answered = wire.ask("GET", "/fail", x_request_id="id-of-defect")
    assert answered.status == 500
    assert json.loads(answered.body)["error"]["type"] == "api_error"
    assert b"secret" not in answered.body
    assert "id-of-defect" in caplog.text
    assert "secret detail" in caplog.text


def test_the_log_has_one_line_for_a_request_and_no_key(protected, caplog):
    """O1: neither right nor wrong keys are logged; nor is a query, which may hold one."""
    with caplog.at_level(logging.DEBUG, "dspark.server"), Wire(protected.port) as wire:
        wire.ask("GET", "/models?api_key=hunter2", x_api_key=KEY, x_request_id="id-1")
        wire.ask("GET", "/models%0Aforged", Authorization="Bearer hunter2", x_request_id="id-2")
        wire.ask("GET", "/health", x_request_id="id-3")
        assert eventually(lambda: "id-3" in caplog.text)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert [line.split()[:5] for line in lines] == [
        ["id-1", "127.0.0.1", "GET", "/models", "200"],
        ["id-2", "127.0.0.1", "GET", "/models%0Aforged", "401"],
        ["id-3", "127.0.0.1", "GET", "/health", "200"],
    ]
    assert KEY not in caplog.text
    assert "hunter2" not in caplog.text
    assert not any("\n" in line for line in lines)


def test_sixty_four_clients_at_once_get_their_own_answers(served):
    """Fault list: 64 parallel connections, no foreign text."""
    wrong = []

    def ask(number):
        with Wire(served.port) as wire:
            for turn in range(5):
                path = f"/models/{number}-{turn}"
                if json.loads(wire.ask("GET", path).body)["path"] != path:
                    wrong.append(path)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_a_thousand_short_requests_on_one_connection(served, wire, caplog):
    """Fault list, with MLX_DSPARK_FULL_FUZZ=1 its 10,000: each is answered, and the process grows no larger."""
    caplog.set_level(logging.WARNING, "dspark")  # what is caught of the log stays in memory
    process = psutil.Process()

    def ask(times):
        for _ in range(times):
            assert wire.ask().status == 200
            served.probe.requests.clear()
        return process.memory_info().rss, process.num_threads(), process.num_fds()

    size, *others = ask(100)
    grown, *after = ask(9900 if os.environ.get("MLX_DSPARK_FULL_FUZZ") else 900)
    assert after == others and grown - size < 8 << 20


def test_waiting_clients_do_not_hold_up_others(served):
    served.probe.release.clear()
    with Wire(served.port) as waiting, Wire(served.port) as other:
        waiting.send(request_bytes("GET", "/wait"))
        assert eventually(lambda: served.probe.requests)
        assert other.ask().status == 200
        served.probe.release.set()
        assert waiting.answer().status == 200
