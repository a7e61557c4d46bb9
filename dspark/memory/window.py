"""Whether the context window that a pair was loaded with fits this machine."""

from dspark.machine.ceilings import Ceiling
from dspark.targets.footprint import CacheFootprint

_ROUND_TOKENS = 1024


def window_warning(cache: CacheFootprint, window: int, ceiling: Ceiling | None, *, quantized: bool) -> str | None:
    """What to say where a full window's cache does not fit beside the loaded model; None where it does, or unknown."""
    if ceiling is None or cache.at(window) <= ceiling.room_bytes:
        return None
    fitting = cache.longest(ceiling.room_bytes, window)
    remedies = [f"set --context-window {fitting - fitting % _ROUND_TOKENS}"] if fitting >= _ROUND_TOKENS else []
    remedies += [] if quantized else ["quantize the cache with --kv-bits 8"]
    need, room = cache.at(window) / 1e9, ceiling.room_bytes / 1e9
    return (
        f"a full context of {window} tokens takes {need:.1f} GB, but {room:.1f} GB are left under {ceiling.binds}: "
        f"{', '.join([*remedies, ''])}or {ceiling.remedy}"
    )
