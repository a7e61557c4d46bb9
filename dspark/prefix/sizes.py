"""What is held, in bytes, and how much of it there may be."""

from dspark.drafters.drafter import DrafterContext
from dspark.machine import describe
from dspark.machine.room import room

_SHARE = 8
_UNKNOWN_MACHINE_BYTES = 1_000_000_000


def context_bytes(context: DrafterContext | None) -> int:
    """Bytes of a drafter's context."""
    return sum(array.nbytes for array in context.arrays) if context is not None else 0


def default_limit_bytes() -> int:
    """An eighth of what a model may take on this machine."""
    limit = room(describe()).limit_bytes
    return limit // _SHARE if limit is not None else _UNKNOWN_MACHINE_BYTES
