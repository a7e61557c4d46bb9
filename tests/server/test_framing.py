"""What counts as a request, byte by byte."""

import socket

import pytest

from dspark.errors import BadRequest, BodyTooLarge, HeadersTooLarge, TooSlow
from dspark.server import framing
from dspark.server.framing import Inbox, parse_head


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Inbox(ours), theirs


def head_of(*lines, first=b"POST /v1/x?a=1 HTTP/1.1"):
    return parse_head(b"\r\n".join((first, *lines)))


def test_a_request_line_and_its_headers_are_taken_apart():
    head = head_of(b"Host: localhost:80", b"X-Two: a", b"x-two:\tb  ", b"Content-Length: 7")
    assert (head.method, head.path, head.query, head.length) == ("POST", "/v1/x", "a=1", 7)
    assert head.headers["X-TWO"] == "a, b"
    assert head.host == "localhost:80"
    assert head.keep_alive


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/2.0",
        b"GET / HTTP/1.2",
        b"GET / HTTP/0.9",
        b"GET /",
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b" GET / HTTP/1.1",
        b"GET /a b HTTP/1.1",
        b"GET /\xc3\xa9 HTTP/1.1",
        b"GET /\x00 HTTP/1.1",
        b"G(T / HTTP/1.1",
        b"GET relative HTTP/1.1",
        b"CONNECT host:80 HTTP/1.1",
        b"GET ftp://host/ HTTP/1.1",
        b"GET http://[::1/ HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"\x16\x03\x01\x02\x00",
        b"",
    ],
)
def test_what_is_no_request_line_is_refused(first):
    with pytest.raises(BadRequest):
        head_of(b"Host: localhost", first=first)


@pytest.mark.parametrize(
    "line",
    [
        b" folded: value",
        b"\tcontinued",
        b"Name : value",
        b": nameless",
        b"no colon",
        b"X: a\x00b",
        b"X: a\rb",
        b"X: a\nb",
        b"X: \x7f",
        b"X\xe9: a",
    ],
)
def test_a_header_line_that_could_be_read_in_two_ways_is_refused(line):
    with pytest.raises(BadRequest):
        head_of(b"Host: localhost", line)


@pytest.mark.parametrize(
    "lines",
    [
        (b"Content-Length: 3", b"Transfer-Encoding: chunked"),
        (b"Content-Length: 3", b"Content-Length: 3"),
        (b"Content-Length: 3", b"Content-Length: 4"),
        (b"Content-Length: 3, 3",),
        (b"Content-Length: +3",),
        (b"Content-Length: -3",),
        (b"Content-Length: 0x3",),
        (b"Content-Length: 3 3",),
        (b"Content-Length:",),
        (b"Content-Length: " + b"9" * 40,),
        ("Content-Length: ٣".encode(),),
        (b"Transfer-Encoding: gzip, chunked",),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked, identity",),
        (b"Transfer-Encoding: xchunked",),
        (b"Transfer-Encoding:",),
        (b"Host: other",),
    ],
)
def test_two_answers_to_where_the_request_ends_are_refused(lines):
    with pytest.raises(BadRequest):
        head_of(b"Host: localhost", *lines)


def test_a_host_is_needed_and_has_to_be_one():
    with pytest.raises(BadRequest):
        head_of()
    assert head_of(first=b"GET / HTTP/1.0").host is None
    for host in (b"a b", b"a/b", b"user@host", b"[::1", b"[::1]x", b"a:b"):
        with pytest.raises(BadRequest):
            head_of(b"Host: " + host)


def test_the_host_in_a_whole_url_goes_before_the_header():
    head = head_of(b"Host: localhost", first=b"GET http://evil.example:1/x?y HTTP/1.1")
    assert (head.host, head.path, head.query) == ("evil.example:1", "/x", "y")


def test_more_fields_than_anyone_sends_are_refused():
    with pytest.raises(HeadersTooLarge):
        head_of(b"Host: localhost", *[b"X: y"] * framing.FIELDS_LIMIT)


def test_a_head_may_come_in_any_pieces(pair):
    inbox, peer = pair
    text = b"\r\nPOST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"
    for split in range(len(text) + 1):
        peer.sendall(text[:split])
        if split > 2:
            assert inbox.wait(1.0)
        peer.sendall(text[split:])
        assert inbox.wait(1.0)
        assert inbox.body(inbox.head()) == b"hi"
        assert inbox.empty


def test_a_line_that_ends_without_a_carriage_return_is_refused_at_once(pair):
    inbox, peer = pair
    peer.sendall(b"GET / HTTP/1.1\nHost: a\n\n")
    with pytest.raises(BadRequest):
        inbox.head()


def test_tls_on_this_port_is_refused_at_once(pair):
    inbox, peer = pair
    peer.sendall(b"\x16\x03\x01\x02\x00\x01")
    with pytest.raises(BadRequest, match="no TLS"):
        inbox.head()


def test_headers_have_a_limit(pair):
    inbox, peer = pair
    peer.sendall(b"GET / HTTP/1.1\r\n")
    peer.setblocking(False)
    peer.send(b"X: " + b"a" * (framing.HEAD_LIMIT_BYTES + 1))
    with pytest.raises(HeadersTooLarge):
        inbox.head()


def test_headers_that_trickle_have_a_deadline_for_all_of_them(pair, monkeypatch):
    """O7: bytes that keep coming do not buy time."""
    monkeypatch.setattr(framing, "HEAD_SECONDS", 0.0)
    inbox, peer = pair
    peer.sendall(b"GET / HT")
    with pytest.raises(TooSlow):
        inbox.head()


def test_a_body_without_progress_is_given_up(pair, monkeypatch):
    """O7: slow loris in the body."""
    monkeypatch.setattr(framing, "PROGRESS_SECONDS", 0.01)
    inbox, peer = pair
    peer.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nshort")
    with pytest.raises(TooSlow):
        inbox.body(inbox.head())


def chunked(pair, body, limit_bytes=1000):
    inbox, peer = pair
    peer.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    peer.shutdown(socket.SHUT_WR)
    return inbox.body(inbox.head(), limit_bytes)


def test_chunks_are_put_together(pair):
    assert chunked(pair, b'5;name="v"\r\nhello\r\n00A\r\n 123456789\r\n0\r\nTrailer: x\r\n\r\n') == b"hello 123456789"


@pytest.mark.parametrize(
    "body",
    [
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b"5;\x00\r\nhello\r\n0\r\n\r\n",
        b"5;" + b"x" * 5000 + b"\r\nhello\r\n0\r\n\r\n",
        b"0\r\nbad trailer\r\n\r\n",
        b"f" * 17 + b"\r\n",
    ],
)
def test_chunks_that_are_none_are_refused(pair, body):
    with pytest.raises(BadRequest):
        chunked(pair, body)


@pytest.mark.parametrize("body", [b"ffffffffffffffff\r\n", b"3e8\r\n" + b"a" * 1000 + b"\r\n1\r\n"])
def test_chunks_are_bounded_together(pair, body):
    with pytest.raises(BodyTooLarge):
        chunked(pair, body)


def test_a_body_that_breaks_off_is_no_body(pair):
    with pytest.raises(ConnectionError):
        chunked(pair, b"5\r\nhel")
