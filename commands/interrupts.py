"""Ctrl-C, SIGTERM and SIGHUP alike: an end that comes early, but leaves time to show what there is."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """Context manager in which the first signal raises KeyboardInterrupt and those after it do nothing.

    `received` is the signal that raised, None before. A signal that is ignored on entry (nohup) stays ignored.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._shielded = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                before = signal.getsignal(number)
                if before not in (signal.SIG_IGN, None):
                    self._before[number] = before
                    signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def check(self) -> None:
        """Raise again where the exception was lost on its way, as it is in a finalizer."""
        if self.received is not None:
            raise KeyboardInterrupt

    def shield(self) -> None:
        """Let no further signal raise: what follows is short, and must be finished."""
        self._shielded = True

    @property
    def hung_up(self) -> bool:
        """Whether the terminal has left."""
        return self.received == getattr(signal, "SIGHUP", 0)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._shielded:
            self._shielded, self.received = True, number
            raise KeyboardInterrupt


def let_go() -> None:
    """Point stdout and stderr nowhere: after a hangup they fail, and Python flushes them once more at its exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
