"""The connections that are open: how many there may be, and which of them nobody would miss."""

import socket
import threading
import time
from contextlib import suppress

_EVICTION_SECONDS = 2.0


class Pool:
    """Keeps account of open sockets. Each has a thread; `limit` bounds them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._idle_since: dict[socket.socket, float | None] = {}
        self._closing = False

    def admit(self, peer: socket.socket) -> bool:
        """Take one more in, if need be in place of the one that has been idle for longest."""
        with self._changed:
            if len(self._idle_since) >= self._limit:
                self._evict()
            if self._closing or len(self._idle_since) >= self._limit:
                return False
            self._idle_since[peer] = time.monotonic()
            return True

    def _evict(self) -> None:
        idle = [(since, peer) for peer, since in self._idle_since.items() if since is not None]
        if idle:
            _cut(min(idle, key=lambda pair: pair[0])[1])
            self._changed.wait_for(lambda: len(self._idle_since) < self._limit, _EVICTION_SECONDS)

    def remove(self, peer: socket.socket) -> None:
        """Forget one that is closed."""
        with self._changed:
            self._idle_since.pop(peer, None)
            self._changed.notify_all()

    def idle(self, peer: socket.socket) -> bool:
        """One waits for its next request; false if it shall not."""
        with self._changed:
            self._idle_since[peer] = time.monotonic()
            return not self._closing

    def busy(self, peer: socket.socket) -> None:
        """One has sent the headers of a request."""
        with self._changed:
            self._idle_since[peer] = None

    def close_idle(self) -> None:
        """Close those that wait for a request, and from now on each as it comes to wait."""
        with self._changed:
            self._closing = True
            for peer, since in self._idle_since.items():
                if since is not None:
                    _cut(peer)

    def cut(self) -> None:
        """Close all."""
        with self._changed:
            for peer in self._idle_since:
                _cut(peer)

    def wait_empty(self, seconds: float) -> bool:
        """Whether all are closed within `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._idle_since, seconds)


def _cut(peer: socket.socket) -> None:
    """Wakes the thread that reads from or writes to it, which then closes it."""
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
