"""API keys: how they are compared, and named sub-keys that live in a file as hashes."""

import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dspark.errors import StorageError, UsageError
from dspark.hub import shelves
from dspark.hub.storage import in_place_of, refused
from dspark.regular import special

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HOME = "MLX_DSPARK_HOME"
_FILE = "api-keys.json"

_logger = logging.getLogger("dspark.server")


def digest(key: str) -> str:
    """SHA-256 of a key, in hex. Logs hold its first 8 digits at most."""
    return hashlib.sha256(key.encode()).hexdigest()


def same_key(given: str, digest_wanted: str) -> bool:
    """Compare in constant time, whatever the lengths."""
    return hmac.compare_digest(digest(given), digest_wanted)


class SubKeys:
    """Named keys in a file, which other processes may change while the server runs.

    The keys themselves are shown once and stored nowhere: they are random, so that a plain hash keeps them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._digests: dict[str, str] = {}
        self._read()

    @classmethod
    def at_home(cls) -> "SubKeys":
        """Those that every server of this user takes."""
        return cls(shelves.home() / _FILE)

    def create(self, name: str) -> str:
        """A new key called `name`, the only time that it is shown.

        Raises:
            UsageError: the name is taken, or none. StorageError: the file cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise UsageError("the name of a key is 1 to 64 letters, digits, dots, dashes and underscores")
        key = f"sk-dspark-{secrets.token_urlsafe(32)}"
        with self._changing() as entries:
            if any(entry["name"] == name for entry in entries):
                raise UsageError(f"there is a key called {name} already: revoke it first, or choose another name")
            entries.append({"name": name, "sha256": digest(key), "created": int(time.time())})
        return key

    def revoke(self, name: str) -> None:
        """Make the key called `name` worthless from now on.

        Raises:
            UsageError: there is none. StorageError: the file cannot be written.
        """
        with self._changing() as entries:
            if not any(entry["name"] == name for entry in entries):
                raise UsageError(f"there is no key called {name}")
            entries[:] = [entry for entry in entries if entry["name"] != name]

    def names(self) -> list[str]:
        """Of all keys, in the order in which they were made."""
        return list(self._current())

    def find(self, key: str) -> str | None:
        """The name of `key`, or None."""
        matches = [name for name, known in self._current().items() if same_key(key, known)]
        return matches[0] if matches else None

    def _current(self) -> dict[str, str]:
        """Digests by name. While the file cannot be read there are none."""
        with self._lock:
            if self._signature() != self._seen:
                try:
                    self._read()
                except StorageError as error:
                    self._digests = {}
                    _logger.error("%s", error)
            return self._digests

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> None:
        self._seen = self._signature()
        self._digests = {entry["name"]: entry["sha256"] for entry in self._entries()}

    def _entries(self) -> list[dict[str, Any]]:
        try:
            if special(self._path):
                raise ValueError
            entries = json.loads(self._path.read_bytes())["keys"]
            if all(_NAME.fullmatch(entry["name"]) and _DIGEST.fullmatch(entry["sha256"]) for entry in entries):
                return list(entries)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"cannot read {self._path} ({error.strerror or error}): make it readable") from error
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise StorageError(f"{self._path} is not a file of API keys: move it away and make the keys anew")

    @contextmanager
    def _changing(self) -> Iterator[list[dict[str, Any]]]:
        """The entries, to change; written at the end, all or nothing, one process at a time."""
        folder = self._path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            gate = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise refused(error, folder, _HOME) from error
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            entries = self._entries()
            yield entries
            self._write(entries)
        finally:
            os.close(gate)

    def _write(self, entries: list[dict[str, Any]]) -> None:
        try:
            with in_place_of(self._path) as file:
                file.write(json.dumps({"keys": entries}, indent=1).encode())
        except OSError as error:
            raise refused(error, self._path.parent, _HOME) from error
