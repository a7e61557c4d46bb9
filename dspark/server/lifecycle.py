"""From the first request to the last, with the signals that end it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Asked for once, by a signal or by `request`, and waited for by the main thread."""

    def __init__(self) -> None:
        # A pipe, as the interpreter writes to it whichever thread a signal came to, and at any moment.
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self.write_end, False)
        self._asked = False

    def request(self) -> None:
        """Ask for the end, from any thread or from a signal handler. Once is enough, also when it is over already."""
        if not self._asked:
            self._asked = True
            os.write(self.write_end, b"\0")

    @property
    def asked(self) -> bool:
        """Whether it was asked for."""
        return self._asked

    def wait(self) -> None:
        """Wait until it is asked for."""
        while not self._asked:
            os.read(self._read_end, 1)

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self._read_end)
        os.close(self.write_end)


@contextmanager
def ended_by_signals() -> Iterator[Stop]:
    """The first signal that ends processes asks for a stop, a second one ends at once. Ignored ones stay ignored.

    For the main thread alone.
    """
    stop = Stop()
    before = {number: signal.getsignal(number) for number in ENDING}
    heeded = [number for number, action in before.items() if action is not signal.SIG_IGN]

    def ask(number: int, frame: FrameType | None) -> None:
        for other in heeded:
            signal.signal(other, signal.SIG_DFL)
        stop.request()

    woken_before = signal.set_wakeup_fd(stop.write_end, warn_on_full_buffer=False)
    for number in heeded:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(woken_before)
        for number in heeded:
            signal.signal(number, before[number])
        stop.close()
