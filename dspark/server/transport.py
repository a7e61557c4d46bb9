"""The listening socket, a thread for each connection, and an orderly end."""

import errno
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any

from dspark.errors import Overloaded, UsageError
from dspark.server.auth import check_exposure
from dspark.server.connection import Connection, refuse_unheard
from dspark.server.origins import is_loopback
from dspark.server.pool import Pool
from dspark.server.routing import Router

CONNECTIONS_LIMIT = 128

_BACKLOG = 256
_CANCEL_SECONDS = 3.0
_CUT_SECONDS = 2.0
_REFUSED_SECONDS = 1.0
_REFUSED_LIMIT = 32
_PROBING = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

_logger = logging.getLogger("dspark.server")


class HttpServer(ThreadingHTTPServer):
    """Listens from the moment it is made, and answers once it is started. See `bind`.

    `host` and `port` are what it is bound to: the port that the system chose, where 0 was asked for.
    """

    daemon_threads = True
    request_queue_size = _BACKLOG
    router: Router
    host: str
    port: int

    def __init__(self, family: socket.AddressFamily, address: tuple[Any, ...], connections_limit: int) -> None:
        self.address_family = family
        self.stopping = False
        self.pool = Pool(connections_limit)
        self._refused: deque[tuple[float, socket.socket]] = deque()
        self._thread: threading.Thread | None = None
        super().__init__(address, Connection)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def url(self) -> str:
        """Where clients on this machine find it, as `http://127.0.0.1:8080`."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{_bracketed(host)}:{self.port}"

    def urls(self) -> list[str]:
        """Where clients find it, those on other machines too: one for each address of this machine."""
        if self.host not in ("0.0.0.0", "::"):
            return [self.url]
        import psutil

        families = (socket.AF_INET,) if self.host == "0.0.0.0" else (socket.AF_INET, socket.AF_INET6)
        found = [
            entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family in families
        ]
        outer = [address for address in dict.fromkeys(found) if not is_loopback(address) and "%" not in address]
        return [self.url, *(f"http://{_bracketed(address)}:{self.port}" for address in outer)]

    def start(self, router: Router) -> None:
        """Answer with `router` from now on."""
        self.router = router
        self._thread = threading.Thread(target=self.serve_forever, name="dspark-http", daemon=True)
        self._thread.start()

    def stop(self, finish_s: float = 10.0, cancel: Callable[[], None] | None = None) -> bool:
        """Stop accepting, let requests finish for `finish_s`, then `cancel` what they wait for, then cut them off.

        Returns whether all of them came to their end; none of them is waited for any longer.
        """
        self.stopping = True
        if self._thread is not None:
            self.shutdown()
        self.server_close()
        self.pool.close_idle()
        finished = self.pool.wait_empty(finish_s)
        if not finished and cancel is not None:
            cancel()
            finished = self.pool.wait_empty(_CANCEL_SECONDS)
        if not finished:
            self.pool.cut()
            self.pool.wait_empty(_CUT_SECONDS)
        return finished

    def server_bind(self) -> None:
        """Without the reverse look-up of the base class, which may take seconds."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.host, self.port = self.socket.getsockname()[:2]

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            peer, address = self.socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                _logger.error("cannot accept a connection (%s): close some, or raise `ulimit -n`", error.strerror)
                time.sleep(0.1)  # the connection stays in the queue and would be tried again at once
            raise
        with suppress(OSError):  # macOS refuses for a peer that has left already
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _PROBING.items():  # a peer that was switched off is noticed within a minute
                if hasattr(socket, name):
                    peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return peer, address

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.pool.admit(request):
            self._refuse(request, client_address)
            return
        threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name="dspark-connection", daemon=True
        ).start()

    def _refuse(self, peer: socket.socket, client_address: Any) -> None:
        """Answer 503 without a thread. The socket is closed a little later, so that the answer gets there."""
        with suppress(OSError):
            refuse_unheard(peer, client_address[0], self.router, Overloaded("too many connections: try again"))
            peer.shutdown(socket.SHUT_WR)
        self._refused.append((time.monotonic() + _REFUSED_SECONDS, peer))

    def service_actions(self) -> None:
        """Called about twice a second, and after each connection."""
        now = time.monotonic()
        while self._refused and (self._refused[0][0] < now or len(self._refused) > _REFUSED_LIMIT):
            self.close_request(self._refused.popleft()[1])

    def close_request(self, request: Any) -> None:
        super().close_request(request)
        self.pool.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _logger.exception("a connection from %s broke", client_address[0])


def bind(host: str, port: int, *, protected: bool = False, connections_limit: int = CONNECTIONS_LIMIT) -> HttpServer:
    """Take the port, so that all that can be wrong with it is known before anything else is begun.

    Args:
        host: a name or address of this machine; `0.0.0.0` and `::` are all of its addresses.
        port: 0 takes a free one.
        protected: whether a key is asked for, without which only this machine may be served.

    Raises:
        UsageError: no such port or host, the port is in use, or everyone would be served.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"there is no port {port}: choose one from 1 to 65535, or 0 for a free one")
    family, address = _resolved(host, port)
    check_exposure(str(address[0]), protected)
    try:
        if port and _answers(family, address):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return HttpServer(family, address, connections_limit)
    except OSError as error:
        raise _cannot_listen(error, host, port) from error


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """IPv4 first: what calls itself localhost is looked for there by most."""
    try:
        found = socket.getaddrinfo(host.strip("[]") or "-", port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UsageError(f"{host!r} is no name or address of this machine: use 127.0.0.1, or 0.0.0.0 for all") from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address


def _answers(family: socket.AddressFamily, address: tuple[Any, ...]) -> bool:
    """Whether something listens already. (macOS lets a second server hide the first on the same port.)"""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(address[0]), address[0])
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, *address[1:])) == 0 and probe.getsockname() != probe.getpeername()


def _cannot_listen(error: OSError, host: str, port: int) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"port {port} of {host} is in use: stop what listens there, or choose another with --port")
    if error.errno == errno.EACCES:
        return UsageError(f"port {port} is for the system alone: choose one from 1024 up with --port")
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"{host} is no address of this machine: use 127.0.0.1, or 0.0.0.0 for all")
    return UsageError(f"cannot listen on port {port} of {host} ({error.strerror or error}): choose another address")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
