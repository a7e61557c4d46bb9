"""Addresses that guess keys wait."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from dspark.errors import LockedOut
from dspark.server.origins import is_loopback

RUN_LENGTH = 8
FIRST_SECONDS = 30.0
LATER_SECONDS = 300.0

_ADDRESSES_LIMIT = 4096


@dataclass
class _Record:
    wrong: int = 0
    runs: int = 0
    locked_until: float = 0.0


class Lockout:
    """Counts wrong keys in a row by address. Those on this machine are not counted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise `LockedOut` while the address has to wait."""
        with self._lock:
            record = self._records.get(address)
            left_s = record.locked_until - self._clock() if record else 0.0
        if left_s > 0:
            raise LockedOut("too many wrong API keys from this address: wait, then send the right one", ceil(left_s))

    def wrong(self, address: str) -> bool:
        """Note a wrong key; whether the address is locked out by it."""
        if is_loopback(address):
            return False
        with self._lock:
            record = self._records.setdefault(address, _Record())
            self._records.move_to_end(address)
            if len(self._records) > _ADDRESSES_LIMIT:
                self._records.popitem(last=False)
            record.wrong += 1
            if record.wrong < RUN_LENGTH:
                return False
            record.wrong = 0
            record.runs += 1
            record.locked_until = self._clock() + (FIRST_SECONDS if record.runs == 1 else LATER_SECONDS)
            return True

    def right(self, address: str) -> None:
        """A right key clears the count."""
        with self._lock:
            self._records.pop(address, None)
