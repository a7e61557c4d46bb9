"""From bytes to requests, strictly: what could be read in two ways is refused, as some proxy reads it the other way."""

import re
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from dspark.errors import BadRequest, BodyTooLarge, HeadersTooLarge, TooSlow
from dspark.server.exchange import Headers

HEAD_LIMIT_BYTES = 64 << 10
BODY_LIMIT_BYTES = 256 << 20
FIELDS_LIMIT = 256
HEAD_SECONDS = 30.0
PROGRESS_SECONDS = 60.0

_RECEIVE_BYTES = 64 << 10
_CHUNK_LINE_LIMIT_BYTES = 4 << 10
_NAME = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(%s) ([\x21-\x7e]+) HTTP/1\.([01])" % _NAME)
_FIELD = re.compile(rb"(%s):([\t\x20-\x7e\x80-\xff]*)" % _NAME)
_START = re.compile(_NAME)
_LONE_NEWLINE = re.compile(rb"(?<!\r)\n")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_LENGTH = re.compile(r"[0-9]{1,18}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]*)(:[0-9]*)?", re.ASCII)


@dataclass(frozen=True)
class Head:
    """Request line and headers. `length` is that of the body in bytes: None without one, and where it is `chunked`."""

    method: str
    path: str
    query: str
    minor_version: int
    headers: Headers
    host: str | None
    length: int | None
    chunked: bool

    @property
    def has_body(self) -> bool:
        """Whether bytes of a body follow."""
        return self.chunked or bool(self.length)

    @property
    def expects_continue(self) -> bool:
        """Whether the client may hold the body back until it is told to send it."""
        return self.minor_version == 1 and self.headers.get("expect", "").lower() == "100-continue"

    @property
    def keep_alive(self) -> bool:
        """Whether the client wants to use the connection again."""
        options = {option.strip() for option in self.headers.get("connection", "").lower().split(",")}
        return "close" not in options and (self.minor_version == 1 or "keep-alive" in options)


def parse_head(block: bytes) -> Head:
    """Read a header block, without the empty line that ends it.

    Raises:
        BadRequest: it is not HTTP/1.0 or 1.1, or leaves open where the request ends.
        HeadersTooLarge: more than `FIELDS_LIMIT` fields.
    """
    first, *lines = block.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise _not_http()
    if len(lines) > FIELDS_LIMIT:
        raise HeadersTooLarge(f"the request has {len(lines)} header fields; {FIELDS_LIMIT} are the limit")
    method, target, minor = line[1].decode(), line[2].decode(), int(line[3])
    # Host and what frames the body are refused when sent twice: joined with a comma, none of them is valid.
    headers = Headers(map(_field, lines))
    path, query, authority = _target(method, target)
    host = authority if authority is not None else headers.get("host")
    if host is None and minor == 1:
        raise BadRequest("the header host is missing")
    if host is not None and not _HOST.fullmatch(host):
        raise BadRequest("the header host is not a host name with an optional port")
    length, chunked = _body_framing(headers, minor)
    return Head(method, path, query, minor, headers, host, length, chunked)


def _field(line: bytes) -> tuple[str, str]:
    matched = _FIELD.fullmatch(line)
    if matched is None:
        raise BadRequest("a header line is not `name: value` on one line of printable characters")
    return matched[1].decode().lower(), matched[2].strip(b" \t").decode("latin-1")


def _target(method: str, target: str) -> tuple[str, str, str | None]:
    """Path, query and, where the target is a whole URL, its host."""
    if target == "*" and method == "OPTIONS":
        return "*", "", None
    authority = None
    if not target.startswith("/"):
        try:
            url = urlsplit(target)
        except ValueError:
            url = urlsplit("")
        if url.scheme not in ("http", "https") or not url.netloc:
            raise BadRequest("the request's target is neither a path nor a URL")
        authority = url.netloc
        target = target.split("://", 1)[1].removeprefix(url.netloc)
        if not target.startswith("/"):
            target = f"/{target}"
    path, _, query = target.partition("#")[0].partition("?")
    return path, query, authority


def _body_framing(headers: Headers, minor: int) -> tuple[int | None, bool]:
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None:
        if length is not None:
            raise BadRequest("content-length and transfer-encoding contradict each other: send one of them")
        if minor == 0 or coding.lower() != "chunked":
            raise BadRequest("the only transfer-encoding known here is `chunked`, in HTTP/1.1")
        return None, True
    if length is None:
        return None, False
    if not _LENGTH.fullmatch(length):
        raise BadRequest("content-length is not a number of bytes")
    return int(length), False


class Inbox:
    """What a peer sends, read with limits and deadlines. Raises `ConnectionError` when the peer goes away."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._buffer = bytearray()

    @property
    def empty(self) -> bool:
        """Whether nothing has been received that was not read."""
        return not self._buffer

    def wait(self, seconds: float) -> bool:
        """Wait for the first byte of a request; False if none came, or the peer said that none will."""
        try:
            while not self._skip_empty_lines():
                self._receive(seconds)
        except OSError:
            return False
        return True

    def _skip_empty_lines(self) -> bool:
        while self._buffer.startswith(b"\r\n"):
            del self._buffer[:2]
        return bool(self._buffer)

    def head(self) -> Head:
        """The next header block.

        Raises:
            As `parse_head`; HeadersTooLarge, TooSlow.
        """
        deadline = time.monotonic() + HEAD_SECONDS
        seen = 0
        while True:
            if self._skip_empty_lines() and self._buffer[:1] != b"\r" and not _START.match(self._buffer):
                raise _not_http()
            end = self._buffer.find(b"\r\n\r\n", max(0, seen - 3))
            complete = len(self._buffer) if end < 0 else end
            if _LONE_NEWLINE.search(self._buffer, max(0, seen - 1), complete):
                raise BadRequest("header lines end with CR and LF")
            if complete > HEAD_LIMIT_BYTES:
                raise HeadersTooLarge(f"the headers are longer than {HEAD_LIMIT_BYTES >> 10} KiB")
            if end >= 0:
                block = bytes(self._buffer[:end])
                del self._buffer[: end + 4]
                return parse_head(block)
            seen = len(self._buffer)
            self._receive_before(deadline)

    def _receive_before(self, deadline: float) -> None:
        try:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._receive(left)
        except TimeoutError:
            raise TooSlow(f"the headers did not arrive within {HEAD_SECONDS:.0f} s") from None

    def body(self, head: Head, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
        """The body that belongs to `head`.

        Raises:
            BodyTooLarge: longer than `limit_bytes`; of a length that was told, nothing has been read.
            BadRequest: chunks that are none. TooSlow: no progress for `PROGRESS_SECONDS`.
        """
        if head.chunked:
            return self._chunks(limit_bytes)
        self.check_length(head, limit_bytes)
        return self._take(head.length or 0)

    @staticmethod
    def check_length(head: Head, limit_bytes: int = BODY_LIMIT_BYTES) -> None:
        """Raise `BodyTooLarge` for a body that says itself that it is longer than `limit_bytes`."""
        if head.length is not None and head.length > limit_bytes:
            raise _too_large(limit_bytes)

    def _chunks(self, limit_bytes: int) -> bytes:
        body = bytearray()
        while True:
            line = self._line(_CHUNK_LINE_LIMIT_BYTES)
            matched = _CHUNK_LINE.fullmatch(line)
            if matched is None:
                raise BadRequest("a chunk of the body does not begin with its length")
            size = int(matched[1], 16)
            if size == 0:
                break
            if len(body) + size > limit_bytes:
                raise _too_large(limit_bytes)
            body += self._take(size)
            if self._take(2) != b"\r\n":
                raise BadRequest("a chunk of the body is longer than it says")
        self._skip_trailers()
        return bytes(body)

    def _skip_trailers(self) -> None:
        left = HEAD_LIMIT_BYTES
        while line := self._line(left):
            _field(line)
            left -= len(line)

    def _line(self, limit_bytes: int) -> bytes:
        while True:
            end = self._buffer.find(b"\r\n")
            complete = len(self._buffer) if end < 0 else end
            if complete > limit_bytes or _LONE_NEWLINE.search(self._buffer, 0, complete):
                raise BadRequest("a line between the chunks of the body is too long or does not end with CR and LF")
            if end >= 0:
                break
            self._progress()
        line = self._take(end)
        self._take(2)
        return line

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._progress()
        with memoryview(self._buffer) as view:
            taken = bytes(view[:count])
        del self._buffer[:count]
        return taken

    def _progress(self) -> None:
        try:
            self._receive(PROGRESS_SECONDS)
        except TimeoutError:
            raise TooSlow(f"the body made no progress for {PROGRESS_SECONDS:.0f} s") from None

    def _receive(self, seconds: float) -> None:
        self._peer.settimeout(seconds)
        received = self._peer.recv(_RECEIVE_BYTES)
        if not received:
            raise ConnectionAbortedError
        self._buffer += received


def _not_http() -> BadRequest:
    return BadRequest("this is not a request of HTTP/1.1: METHOD, path and HTTP/1.1 were expected (no TLS, no HTTP/2)")


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {limit_bytes >> 20} MiB: send less at once")
