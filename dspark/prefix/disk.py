"""The second tier: conversations on disk, which outlive the process.

What MLX holds is copied on its own thread; writing, checksums and making room happen on another. Nothing that goes
wrong here reaches a request: it is counted, and said in one line.
"""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from json import dumps
from pathlib import Path
from stat import S_ISREG
from typing import Any

import mlx.core as mx

from dspark.drafters.drafter import DrafterContext, Storable
from dspark.prefix import filing
from dspark.prefix.packing import Unpackable, from_host, pack, pack_cache, to_host, unpack, unpack_cache
from dspark.prefix.report import DiskReport
from dspark.prefix.slot import Slot
from dspark.sequences import common_prefix
from dspark.targets.caches import TargetCache

FORMAT = 1
_FILES = "prefix-*.safetensors"
_PARTIAL = ".prefix-*.part"
_ABANDONED_S = 3600.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Entry:
    """A file of this pair: its tokens, and the lengths that its cache can go back to (None: any)."""

    tokens: list[int]
    context_tokens: int
    lengths: tuple[int, ...] | None
    nbytes: int

    def usable(self, prompt: list[int], *, drafted: bool) -> int:
        limit = min(common_prefix(self.tokens, prompt), len(prompt) - 1)
        if drafted:
            limit = min(limit, self.context_tokens)
        if self.lengths is None:
            return limit
        return max((one for one in self.lengths if one <= limit), default=0)


class DiskTier:
    """Files in `folder`, `limit_bytes` in all. `key` says what they belong to; those with another are left alone.

    `blank` makes an empty cache, `new_context` an empty drafter's context (None: no drafter).
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        key: Mapping[str, Any],
        blank: Callable[[], TargetCache],
        new_context: Callable[[], DrafterContext] | None,
    ) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._key = {"format": FORMAT, **key}
        self._digest = sha256(dumps(self._key, sort_keys=True).encode()).hexdigest()[:8]
        self._blank = blank
        self._new_context = new_context
        self._entries: dict[Path, _Entry] = {}
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self._refusal: str | None = None
        self._written = self._read = self._errors = self._ignored = self._skipped = 0
        self._last_error: str | None = None
        self._scan()

    @property
    def busy(self) -> bool:
        """Whether a file is being written, or none ever can be."""
        return self._refusal is not None or (self._writer is not None and self._writer.is_alive())

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._writer is not None:
            self._writer.join()

    close = wait

    def take(self, prompt: list[int], more_than: int, *, drafted: bool) -> Slot | None:
        """The conversation that spares reading the most of `prompt`, if that is more than so many tokens."""
        while True:
            with self._lock:
                found = [(entry.usable(prompt, drafted=drafted), path) for path, entry in self._entries.items()]
            usable, path = max(found, default=(0, None))
            if path is None or usable <= more_than:
                return None
            try:
                return self._load(path)
            except (OSError, MemoryError, LookupError, TypeError, ValueError, filing.Damaged, Unpackable) as error:
                with self._lock:
                    known = self._entries.pop(path, None)
                if known is not None:  # else the writer made room meanwhile
                    self._fail(f"{path.name} is not used: {_told(error)}")

    def write(self, slot: Slot) -> Path | None:
        """Begin to write a conversation; returns where, or None where it cannot be written now."""
        if self.busy:
            self._skipped += 1
            return None
        arrays: list[mx.array] = []
        try:
            cache = pack_cache(slot.cache, arrays)
            context = pack(slot.context.state(), arrays) if isinstance(slot.context, Storable) else None
            tensors = [to_host(array) for array in [mx.array(slot.tokens, mx.int32), *arrays]]
        except (Unpackable, KeyError, ValueError, MemoryError) as error:
            self._refusal = _told(error)
            self._fail(f"this model's conversations cannot be written: {self._refusal}")
            return None
        about = {
            "key": self._key,
            "cache": cache,
            "context": context,
            "context_tokens": slot.context.length if context is not None and slot.context is not None else 0,
            "stable": slot.stable,
            "lengths": None
            if slot.cache.anywhere
            else [*(one.length for one in slot.cache.checkpoints), slot.cache.length],
        }
        path = slot.path or self._folder / f"prefix-{self._digest}-{uuid.uuid4().hex[:12]}.safetensors"
        self._writer = threading.Thread(
            target=self._write, args=(path, about, tensors, list(slot.tokens)), name="prefix-writer", daemon=True
        )
        self._writer.start()
        return path

    def report(self) -> DiskReport:
        """Figures as they are now; from any thread."""
        with self._lock:
            sizes = [entry.nbytes for entry in self._entries.values()]
        return DiskReport(
            folder=str(self._folder),
            entries=len(sizes),
            bytes=sum(sizes),
            limit_bytes=self._limit_bytes,
            written=self._written,
            read=self._read,
            errors=self._errors,
            ignored=self._ignored,
            skipped=self._skipped,
            last_error=self._last_error,
        )

    def _scan(self) -> None:
        reasons: list[str] = []
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(self._folder.glob(_FILES)):
                try:
                    self._entries[path] = self._entry(path)
                except (OSError, filing.Damaged) as error:
                    reasons.append(f"{path.name}: {_told(error)}")
            for path in self._folder.glob(_PARTIAL):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > _ABANDONED_S:
                        path.unlink()
        except OSError as error:
            self._fail(f"{self._folder} cannot be used: {_told(error)}")
        self._ignored = len(reasons)
        if reasons:
            _LOG.warning("%d file(s) in %s are not used, such as %s", len(reasons), self._folder, reasons[0])

    def _entry(self, path: Path) -> _Entry:
        about, tokens = filing.read_about(path)
        if about.get("key") != self._key:
            raise filing.Damaged("it belongs to another model, or was written by another version")
        try:
            lengths = about["lengths"]
            return _Entry(
                tokens.data.tolist(),
                int(about["context_tokens"]),
                None if lengths is None else tuple(map(int, lengths)),
                path.stat().st_size,
            )
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise filing.Damaged("its header is incomplete") from error

    def _load(self, path: Path) -> Slot:
        about, (tokens, *tensors) = filing.read(path)
        arrays = [from_host(tensor) for tensor in tensors]
        held = [int(token) for token in tokens.data.tolist()]
        cache = unpack_cache(about["cache"], self._blank(), len(held), arrays)
        context = None
        if about["context"] is not None and self._new_context is not None:
            context = self._new_context()
            assert isinstance(context, Storable)
            context.resume(unpack(about["context"], arrays))
        self._read += 1
        with suppress(OSError):
            os.utime(path)
        return Slot(held, cache, context, about["stable"], path, written=len(held))

    def _write(self, path: Path, about: dict[str, Any], tensors: list[filing.Tensor], tokens: list[int]) -> None:
        try:
            size = filing.write(path, about, tensors, lambda size: self._make_room(size, path))
        except (OSError, MemoryError) as error:
            self._fail(f"{path} cannot be written: {_told(error)}")
            return
        if size is None:
            self._skipped += 1
            return
        entry = _Entry(tokens, about["context_tokens"], about["lengths"], size)
        with self._lock:
            self._entries[path] = entry
        self._written += 1

    def _make_room(self, size: int, path: Path) -> bool:
        """Delete the files that were not used for longest, whosever they are; False where that is not room enough."""
        if size > self._limit_bytes:
            return False
        others = []
        for file in self._folder.glob(_FILES):
            with suppress(FileNotFoundError):  # another server may share the folder
                if file != path and S_ISREG((stat := file.lstat()).st_mode):
                    others.append((stat, file))
        total = sum(stat.st_size for stat, _ in others)
        for stat, file in sorted(others, key=lambda each: each[0].st_mtime):
            if total + size <= self._limit_bytes:
                break
            with self._lock:
                self._entries.pop(file, None)
            with suppress(PermissionError):  # another user's: the next oldest may be ours
                file.unlink(missing_ok=True)
                total -= stat.st_size
        return total + size <= self._limit_bytes

    def _fail(self, message: str) -> None:
        self._errors += 1
        if message != self._last_error:
            self._last_error = message
            _LOG.warning("prefix cache on disk: %s", message)


def _told(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
