"""The C library's own store of freed memory, which it keeps for later."""

import ctypes


def trim() -> None:
    """Give it back to the system where the library can (glibc); elsewhere nothing happens."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)
