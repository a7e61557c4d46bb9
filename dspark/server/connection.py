"""One connection: requests in, answers out, until one side has had enough."""

import logging
import re
import select
import socket
import socketserver
import time
import uuid
from collections.abc import Iterator
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from dspark.errors import LengthRequired, RequestError
from dspark.server.exchange import Answer, EventStream, Headers, HttpRequest, Response
from dspark.server.framing import HEAD_SECONDS, Head, Inbox
from dspark.server.routing import Match, Router, normalised

if TYPE_CHECKING:
    from dspark.server.transport import HttpServer

IDLE_SECONDS = 75.0
SEND_SECONDS = 60.0
SKIP_LIMIT_BYTES = 64 << 10

_LINGER_SECONDS = 5.0
_SEND_BYTES = 64 << 10
_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_VANISHED = select.POLLHUP | select.POLLERR | select.POLLNVAL | getattr(select, "POLLRDHUP", 0)

_logger = logging.getLogger("dspark.server")


def peer_gone(peer: socket.socket) -> bool:
    """Whether the other side has closed, or this one was shut down. From any thread; never waits."""
    try:
        poll = select.poll()
        poll.register(peer, select.POLLIN | _VANISHED)
        events = dict(poll.poll(0)).get(peer.fileno(), 0)
        if events & _VANISHED:
            return True
        return bool(events & select.POLLIN) and not peer.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True


class Connection(socketserver.BaseRequestHandler):
    """Serves what comes over one socket; `socketserver` makes one in a thread of its own."""

    server: "HttpServer"
    request: socket.socket

    def setup(self) -> None:
        self._client = plain_address(self.client_address[0])
        self._inbox = Inbox(self.request)

    def handle(self) -> None:
        try:
            patience_s = HEAD_SECONDS
            while self.server.pool.idle(self.request) and self._inbox.wait(patience_s) and self._exchange():
                patience_s = IDLE_SECONDS
        except ConnectionError:
            pass

    def _exchange(self) -> bool:
        """Serve one request; whether another may follow."""
        started = time.perf_counter()
        try:
            head = self._inbox.head()
        except RequestError as error:
            refuse_unheard(self.request, self._client, self.server.router, error)
            self._linger()
            return False
        self.server.pool.busy(self.request)
        request = self._request(head)
        reply = _Reply(self.request, request, head.keep_alive and not self.server.stopping, head.minor_version)
        try:
            self._answer(head, request, reply)
        finally:
            _log(request, head.path, reply, started)
        return reply.keep_alive

    def _request(self, head: Head) -> HttpRequest:
        wanted = head.headers.get("x-request-id", "")
        headers = head.headers if head.host is None else Headers({**head.headers, "host": head.host}.items())
        return HttpRequest(
            method=head.method,
            path=normalised(head.path),
            headers=headers,
            client=self._client,
            id=wanted if _SANE_ID.fullmatch(wanted) else _new_id(),
            query=dict(parse_qsl(head.query, keep_blank_values=True)),
            gone=lambda: peer_gone(self.request),
        )

    def _answer(self, head: Head, request: HttpRequest, reply: "_Reply") -> None:
        matched = self.server.router.match(request)
        if isinstance(matched, Match):
            try:
                body = self._body(head, matched)
            except RequestError as error:
                reply.keep_alive = False
                reply.send(self.server.router.refuse(error, request))
                self._linger()
                return
            answer = matched.answer(body)
            reply.keep_alive = reply.keep_alive and not self.server.stopping
            reply.send(answer)
        else:
            unread = head.has_body
            skippable = head.length is not None and head.length <= SKIP_LIMIT_BYTES and not head.expects_continue
            reply.keep_alive = reply.keep_alive and (skippable or not unread)
            reply.send(matched)
            if reply.keep_alive and unread:
                self._skip(head, reply)
            elif unread:
                self._linger()

    def _body(self, head: Head, matched: Match) -> bytes:
        if matched.needs_body and not head.chunked and head.length is None:
            raise LengthRequired("the request has no body: send one with content-length")
        self._inbox.check_length(head)
        if head.has_body and head.expects_continue and self._inbox.empty:
            _send_all(self.request, b"HTTP/1.1 100 Continue\r\n\r\n")
        return self._inbox.body(head)

    def _skip(self, head: Head, reply: "_Reply") -> None:
        """Read the short body of a request that was refused, so that the next one begins where it should."""
        try:
            self._inbox.body(head)
        except RequestError:
            reply.keep_alive = False

    def _linger(self) -> None:
        """Take what the peer still sends: closing on unread bytes would reset the connection under our answer."""
        deadline = time.monotonic() + _LINGER_SECONDS
        try:
            self.request.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self.request.settimeout(left)
                if not self.request.recv(_SEND_BYTES):
                    break
        except OSError:
            pass


class _Reply:
    """Writes the answer to one request. `keep_alive` turns false once the connection cannot be used again."""

    def __init__(self, peer: socket.socket, request: HttpRequest, keep_alive: bool, minor_version: int = 1) -> None:
        self.keep_alive = keep_alive
        self.status = 0
        self.sent_bytes = 0
        self.whole = False
        self._peer = peer
        self._request = request
        self._minor_version = minor_version

    def send(self, answer: Answer) -> None:
        """Raises `ConnectionError` when the peer is gone, or takes nothing for `SEND_SECONDS`."""
        try:
            if isinstance(answer, EventStream):
                self._send_stream(answer)
            else:
                self._send_whole(answer)
        except BaseException:
            self.keep_alive = False
            raise
        self.whole = True

    def _send_whole(self, response: Response) -> None:
        headers = [*response.headers]
        if response.body:
            headers.append(("Content-Type", response.content_type))
        if response.status != 204:
            headers.append(("Content-Length", str(len(response.body))))
        head = self._head(response.status, headers)
        body = b"" if self._request.method == "HEAD" else response.body
        self.status, self.sent_bytes = response.status, len(body)
        _send_all(self._peer, head + body)

    def _send_stream(self, stream: EventStream) -> None:
        try:
            chunked = self._minor_version == 1
            self.keep_alive = self.keep_alive and chunked
            headers = [*stream.headers, ("Content-Type", stream.content_type), ("Cache-Control", "no-store")]
            headers.append(("X-Accel-Buffering", "no"))
            if chunked:
                headers.append(("Transfer-Encoding", "chunked"))
            head = self._head(200, headers)
            self.status = 200
            _send_all(self._peer, head)
            if self._request.method == "HEAD":
                return
            for frame in stream.frames:
                if frame:
                    _send_all(self._peer, b"%x\r\n%b\r\n" % (len(frame), frame) if chunked else frame)
                    self.sent_bytes += len(frame)
            if chunked:
                _send_all(self._peer, b"0\r\n\r\n")
        except ConnectionError:
            raise
        except Exception:
            # The client knows by the missing end that the answer is not whole.
            _logger.exception("%s: the stream broke", self._request.id)
            raise ConnectionAbortedError from None
        finally:
            _close(stream.frames, self._request.id)

    def _head(self, status: int, headers: list[tuple[str, str]]) -> bytes:
        always = [
            ("Date", formatdate(usegmt=True)),
            ("x-request-id", self._request.id),
            ("request-id", self._request.id),  # the name that Anthropic's SDKs read
            ("X-Content-Type-Options", "nosniff"),
        ]
        if not self.keep_alive:
            always.append(("Connection", "close"))
        elif self._minor_version == 0:
            always.append(("Connection", "keep-alive"))
        lines = [f"HTTP/1.1 {status} {_phrase(status)}"]
        for name, value in (*always, *headers):
            if not _HEADER_VALUE.fullmatch(value):
                raise ValueError(f"the value of {name} is no header value")
            lines.append(f"{name}: {value}")
        return "\r\n".join((*lines, "", "")).encode("latin-1")


def refuse_unheard(peer: socket.socket, client: str, router: Router, error: RequestError) -> None:
    """Answer with `error` where no request could be read; raises `ConnectionError`."""
    started = time.perf_counter()
    nameless = HttpRequest("-", "-", Headers(), plain_address(client), _new_id())
    reply = _Reply(peer, nameless, keep_alive=False)
    try:
        reply.send(router.refuse(error, nameless))
    finally:
        _log(nameless, "-", reply, started)


def plain_address(address: str) -> str:
    """An address without its IPv6 zone, and that of an IPv4 peer as such."""
    address = address.partition("%")[0]
    return address.removeprefix("::ffff:") if "." in address else address


def _send_all(peer: socket.socket, data: bytes) -> None:
    """In pieces, so that a slow reader has `SEND_SECONDS` for each; raises `ConnectionError`."""
    try:
        peer.settimeout(SEND_SECONDS)
        for start in range(0, len(data), _SEND_BYTES):
            peer.sendall(data[start : start + _SEND_BYTES])
    except OSError as error:
        raise ConnectionAbortedError from error


def _close(frames: Iterator[bytes], request_id: str) -> None:
    close = getattr(frames, "close", None)
    if close is None:
        return
    try:
        close()
    except Exception:
        _logger.exception("%s: the stream did not close", request_id)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _new_id() -> str:
    return f"req_{uuid.uuid4().hex}"


def _log(request: HttpRequest, path: str, reply: _Reply, started: float) -> None:
    """One line. The path is as it was sent, which is printable ASCII; its query, which may hold anything, stays out."""
    if len(path) > 200:
        path = f"{path[:200]}…"
    _logger.info(
        "%s %s %s %s %s %d bytes %.1f ms%s",
        request.id,
        request.client,
        request.method,
        path,
        reply.status or "-",
        reply.sent_bytes,
        (time.perf_counter() - started) * 1e3,
        "" if reply.whole else ", broken off",
    )
