"""How much to remember of what was read."""

from dataclasses import dataclass

from dspark.settings.table import Cache

DISK_BYTES = 20_000_000_000


@dataclass(frozen=True)
class PrefixOptions:
    """`slots` conversations at most, in `limit_bytes` of memory (None: an eighth of what a model may take here).

    `rung_tokens` is how far apart a cache that cannot be trimmed keeps checkpoints (0: only where prompts are known to
    part). `folder` takes what leaves memory, `disk_bytes` of it at most (None: nothing goes to disk).
    """

    enabled: bool = True
    slots: int = 8
    rung_tokens: int = 8192
    limit_bytes: int | None = None
    folder: str | None = None
    disk_bytes: int = DISK_BYTES

    @classmethod
    def of(cls, settings: Cache) -> "PrefixOptions":
        """What the settings say."""
        return cls(
            enabled=settings.prefix_cache,
            slots=settings.prefix_cache_slots,
            rung_tokens=settings.prefix_cache_rungs,
            limit_bytes=None if settings.prefix_cache_bytes == "auto" else settings.prefix_cache_bytes,
            folder=settings.prefix_cache_dir,
            disk_bytes=settings.prefix_cache_disk_bytes,
        )
