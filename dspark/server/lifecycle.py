"""From the first request to the last, with the signals that end it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Asked for once, by a signal or by `request`, and waited for by the main thread."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[int] = SimpleQueue()  # its `put` may be called from a signal handler

    def request(self, number: int = 0) -> None:
        """Ask for the end."""
        self._asked.put(number)

    def wait(self) -> int:
        """Wait until it is asked for; the signal that did, or 0."""
        return self._asked.get()


@contextmanager
def ended_by_signals() -> Iterator[Stop]:
    """The first signal that ends processes asks for a stop, a second one ends at once. Ignored ones stay ignored."""
    stop = Stop()
    before = {number: signal.getsignal(number) for number in ENDING}
    heeded = [number for number, action in before.items() if action is not signal.SIG_IGN]

    def ask(number: int, frame: FrameType | None) -> None:
        for other in heeded:
            signal.signal(other, signal.SIG_DFL)
        stop.request(number)

    for number in heeded:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number in heeded:
            signal.signal(number, before[number])
