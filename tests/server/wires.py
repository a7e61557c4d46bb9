"""A server with a few plain routes, and clients that see every byte."""

import io
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from http.client import HTTPMessage
from typing import Any

from dspark.server.auth import Guard
from dspark.server.body import json_object
from dspark.server.exchange import EventStream, Headers, HttpRequest, Response
from dspark.server.origins import Browsers
from dspark.server.routing import Route, Router
from dspark.server.transport import HttpServer, bind

KEY = "right-key"


def eventually(condition, seconds=5.0):
    """Whether `condition()` comes true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def asked(method="GET", path="/models", client="127.0.0.1", body=b"", **headers) -> HttpRequest:
    """A request as the transport hands it over; header names with underscores for dashes."""
    fields = ((name.replace("_", "-"), value) for name, value in headers.items())
    return HttpRequest(method, path, Headers(fields), client, "req_test", body=body)


@dataclass
class Probe:
    """What the handlers saw."""

    requests: list[HttpRequest] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    noticed: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    def echo(self, request):
        self.requests.append(request)
        return Response.json({"path": request.path, "role": request.role, "length": len(request.body)})

    def parse(self, request):
        return Response.json(json_object(request.body))

    def wait(self, request):
        self.requests.append(request)
        while not self.release.wait(0.01):
            if request.gone():
                self.noticed.set()
                break
        return Response.json({"waited": True})

    def fail(self, request):
        raise RuntimeError("secret detail")

    def count(self, request):
        return EventStream(iter([b"data: 1\n\n", "data: é\n\n".encode(), b"", b"data: 3\n\n"]))

    def endless(self, request):
        return EventStream(self._endless(request))

    def _endless(self, request):
        self.requests.append(request)
        try:
            yield b"data: begun\n\n"
            while not self.release.wait(0.01):
                if request.gone():
                    self.noticed.set()
                    return
            yield b"data: ended\n\n"
        finally:
            self.closed.set()

    def chatter(self, request):
        self.frames = self._chatter()  # held here, so that it is not closed for want of a reader
        return EventStream(self.frames)

    def _chatter(self):
        try:
            while not self.release.is_set():
                yield b"data: " + b"x" * 4096 + b"\n\n"
        finally:
            self.closed.set()

    def broken(self, request):
        def frames():
            yield b"data: 1\n\n"
            raise RuntimeError("secret detail")

        return EventStream(frames())

    def routes(self):
        return [
            Route("GET", "/health", self.echo, "open"),
            Route("GET", "/models", self.echo, "status"),
            Route("GET", "/models/{id:path}", self.echo, "status"),
            Route("POST", "/chat/completions", self.echo, "inference"),
            Route("POST", "/messages", self.echo, "inference"),
            Route("POST", "/parse", self.parse, "inference"),
            Route("GET", "/wait", self.wait, "status"),
            Route("GET", "/fail", self.fail, "status"),
            Route("GET", "/count", self.count, "status"),
            Route("GET", "/endless", self.endless, "status"),
            Route("GET", "/chatter", self.chatter, "status"),
            Route("GET", "/broken", self.broken, "status"),
            Route("POST", "/admin/load", self.echo, "admin"),
            Route("POST", "/admin/unload", self.echo, "admin", needs_body=False),
        ]


@dataclass(repr=False)
class Running:
    server: HttpServer
    probe: Probe

    @property
    def port(self) -> int:
        return self.server.port


@contextmanager
def running(*, host="127.0.0.1", connections_limit=128, key=None, cors_origins=(), server_aliases=(), **guard: Any):
    server = bind(host, 0, protected=key is not None, connections_limit=connections_limit)
    probe = Probe()
    browsers = Browsers(loopback=server.loopback, cors_origins=cors_origins, server_aliases=server_aliases)
    server.start(Router(probe.routes(), Guard(browsers=browsers, key=key, **guard)))
    try:
        yield Running(server, probe)
    finally:
        probe.release.set()
        server.stop(finish_s=0.0)


@dataclass
class Answered:
    status: int
    headers: HTTPMessage
    body: bytes
    whole: bool = True


class Wire:
    """A socket to the server. Reads answers strictly by their own framing."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout_s: float = 20.0) -> None:
        self.socket = socket.create_connection((host, port), timeout_s)
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def send(self, data: bytes) -> "Wire":
        self.socket.sendall(data)
        return self

    def ask(self, method="GET", path="/health", body: bytes | None = None, **headers: str) -> Answered:
        return self.send(request_bytes(method, path, body, **headers)).answer(method)

    def answer(self, method="GET") -> Answered:
        status, headers = self.head()
        if method == "HEAD" or status in (100, 204):
            return Answered(status, headers, b"")
        if headers.get("Transfer-Encoding") == "chunked":
            return Answered(status, headers, *self._chunks())
        if "Content-Length" in headers:
            length = int(headers["Content-Length"])
            body = self.file.read(length)
            return Answered(status, headers, body, len(body) == length)
        return Answered(status, headers, self.file.read())

    def head(self) -> tuple[int, HTTPMessage]:
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        block = io.BytesIO()
        while (line := self.file.readline()) not in (b"\r\n", b""):
            assert line.endswith(b"\r\n")
            block.write(line)
        block.seek(0)
        return int(status), BytesParser(HTTPMessage).parse(block)

    def chunk(self) -> bytes | None:
        """The next chunk; empty for the last, None where the stream broke off."""
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            return None
        data = self.file.read(int(line, 16) + 2)
        return data[:-2]

    def _chunks(self) -> tuple[bytes, bool]:
        body = b""
        while data := self.chunk():
            body += data
        return body, data is not None

    def closed(self) -> bool:
        """Whether the server closes, without another byte."""
        try:
            return self.file.read(1) == b""
        except ConnectionError:
            return True


def request_bytes(method="GET", path="/health", body: bytes | None = None, **headers: str) -> bytes:
    fields = {"Host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body is not None:
        fields["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


def refuses_connections(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return True
    return False
