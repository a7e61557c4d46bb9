"""A prefix cache for a loaded pair."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark.drafters.drafter import Drafter
from dspark.errors import UsageError
from dspark.hub.shelves import expanded
from dspark.prefix.cache import PrefixCache
from dspark.prefix.disk import DiskTier
from dspark.prefix.options import PrefixOptions
from dspark.prefix.report import Mode
from dspark.targets.rewind import leaves
from dspark.targets.target import Target


def open_prefix_cache(
    options: PrefixOptions,
    target: Target,
    drafter: Drafter | None,
    identity: Mapping[str, Any] | None,
    refusal: str | None = None,
) -> PrefixCache:
    """`identity` is what files on disk belong to (None: this pair's go to none), `refusal` why nothing can be kept.

    Raises:
        UsageError, StorageError: the folder's name can be no folder's.
    """
    blank = target.new_cache()
    refusal = refusal or blank.rollback_refusal
    if refusal is not None or not options.enabled:
        return PrefixCache(options, mode="off", reason=refusal)
    disk = None
    if options.folder is not None and identity is not None:
        layers = [type(leaf).__name__ for leaf in leaves(blank.entries)]
        disk = DiskTier(
            _named(options.folder),
            options.disk_bytes,
            {**identity, "dtype": str(target.dtype), "layers": layers},
            target.new_cache,
            drafter.new_context if drafter is not None else None,
        )
    mode: Mode = "checkpoint" if blank.forgets(target.context_window) else "trim"
    return PrefixCache(options, mode=mode, disk=disk)


def _named(folder: str) -> Path:
    if "\0" in folder:
        raise UsageError(f"--prefix-cache-dir {folder!r} has a zero byte in it; no folder has such a name")
    return expanded(folder, "--prefix-cache-dir")
