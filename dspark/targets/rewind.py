"""Taking back rows that a forward wrote: one small class for each kind of cache that mlx-lm has."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import cache as mlx_cache

from dspark.errors import RollbackError

State = dict[str, Any]


class Rewinder(Protocol):
    """Brings one cache back. Lengths count the tokens of the sequence, from its first."""

    @property
    def anywhere(self) -> bool:
        """Whether the cache as it is can go back to any earlier length, however many forwards ago."""

    def forgets(self, length: int) -> bool:
        """Whether a cache that has come to `length` tokens may no longer be able to go back anywhere."""

    def keep(self) -> State | None:
        """What `put_back` needs to return to here later; None where `rewind` always can."""

    def put_back(self, kept: State) -> None:
        """Hold what was held when `kept` was kept, which stays good for another time."""

    def slim(self) -> None:
        """Hold no room past the last row. Arrays become views: nothing is copied until the next write."""

    def mark(self, start: int, width: int) -> None:
        """A forward is about to write `width` rows (0: none yet) behind the first `start`; keep what undoes it."""

    def reaches(self, length: int) -> bool:
        """Whether `rewind` can go back to `length` exactly."""

    def rewind(self, length: int) -> None:
        """Hold the first `length` tokens only."""

    def restore(self, start: int) -> None:
        """Go back to the mark, whether or not the forward came as far as this cache."""


class Growing:
    """KVCache, plain or quantized: rows are addressed by position, and the next write covers what was given back."""

    def __init__(self, entry: Any) -> None:
        self.entry = entry

    @property
    def anywhere(self) -> bool:
        return True

    def forgets(self, length: int) -> bool:
        return False

    def keep(self) -> State | None:
        return None

    def put_back(self, kept: State) -> None:
        _set_state(self.entry, kept)

    def slim(self) -> None:
        entry = self.entry
        if entry.keys is not None:
            entry.keys, entry.values = tree_map(lambda a: a[..., : entry.offset, :], (entry.keys, entry.values))

    def mark(self, start: int, width: int) -> None:
        """Nothing to keep."""

    def reaches(self, length: int) -> bool:
        return True

    def rewind(self, length: int) -> None:
        surplus = self.entry.offset - length
        if surplus > 0 and (given := self.entry.trim(surplus)) != surplus:
            raise RollbackError(
                f"{type(self.entry).__name__} gave back {given} of {surplus} tokens; run this model with --arm baseline"
            )

    def restore(self, start: int) -> None:
        self.rewind(start)


class Concatenated(Growing):
    """ConcatenateKVCache: its `trim` moves the offset only, and the next write would go behind the stale rows."""

    def rewind(self, length: int) -> None:
        entry = self.entry
        if entry.offset > length:
            entry.keys, entry.values = _first_rows(entry.keys, length), _first_rows(entry.values, length)
            entry.offset = length


class Chunked(Growing):
    """ChunkedKVCache: as a growing one, but what left the front before the mark is gone.

    A forward drops what lies a whole chunk behind its own first position, so nothing that positions from the mark
    on could see.
    """

    def __init__(self, entry: Any) -> None:
        super().__init__(entry)
        self._start = 0

    @property
    def anywhere(self) -> bool:
        return bool(self.entry.start_position == 0)

    def forgets(self, length: int) -> bool:
        return bool(length > self.entry.chunk_size)

    def keep(self) -> State | None:
        return state_of(self.entry)

    def slim(self) -> None:
        """A chunk at most: nothing to gain."""

    def mark(self, start: int, width: int) -> None:
        self._start = start

    def reaches(self, length: int) -> bool:
        chunk_start = length - length % self.entry.chunk_size
        return length >= self._start or bool(self.entry.start_position <= chunk_start)


class Ring:
    """RotatingKVCache, whose own `trim` leaves stale rows behind once the ring is full.

    It attends to `max_size` rows, the newest included, so of older rows only `max_size - 1` ever matter:

    - while the buffer holds every position in order, any cut is exact;
    - a write of several rows copies the buffer into order and appends, losing none of those `max_size - 1`:
      the rejected rows are cut off the end, and the old arrays, which such a write leaves alone, undo all of it;
    - a write of one row overwrites the one row that no longer matters, so one step back makes that slot the next to be
      overwritten. A second step back would need a row that is gone.
    """

    def __init__(self, entry: Any) -> None:
        self.entry = entry
        self._rows = 0
        self._before: tuple[mx.array | None, mx.array | None, int] | None = None

    @property
    def anywhere(self) -> bool:
        return self._in_order

    def forgets(self, length: int) -> bool:
        return bool(length > self.entry.max_size)

    def keep(self) -> State | None:
        kept, window = state_of(self.entry), self.entry.max_size
        if (
            self.entry.keep == 0
            and self.entry.keys is not None
            and window < self.entry._idx == self.entry.keys.shape[2]
        ):
            # A long write leaves more rows than will ever be read again.
            kept |= {name: mx.contiguous(kept[name][..., -window:, :]) for name in ("keys", "values")}
            kept["_idx"] = window
        return kept

    def put_back(self, kept: State) -> None:
        _set_state(self.entry, kept)

    def slim(self) -> None:
        """A window at most: nothing to gain."""

    def mark(self, start: int, width: int) -> None:
        entry = self.entry
        self._rows = width
        # One row is written in place, into these very arrays: holding them would be no copy of what they were.
        self._before = (entry.keys, entry.values, entry._idx) if width > 1 else None

    def reaches(self, length: int) -> bool:
        return self._in_order or bool(self.entry.offset - length <= self._rows)

    @property
    def _in_order(self) -> bool:
        """The buffer holds every position from 0 on."""
        return bool(self.entry._idx == self.entry.offset)

    def rewind(self, length: int) -> None:
        entry = self.entry
        surplus = entry.offset - length
        if surplus <= 0:
            return
        if self._in_order:
            self._cut(length)
        elif self._before is None:
            # Never to `max_size`, where the ring stood before that row: with just a window of tokens it would pass for
            # in order, and the slot's own row is gone.
            entry._idx -= 1
        elif surplus == self._rows:
            entry.keys, entry.values, entry._idx = self._before
        elif entry._idx != entry.keys.shape[2]:
            raise RollbackError("a RotatingKVCache is not in order after a block; run this model with --arm baseline")
        else:
            self._cut(entry._idx - surplus)
        entry.offset = length
        self._rows = max(self._rows - surplus, 0)

    def restore(self, start: int) -> None:
        entry = self.entry
        if self._before is None:
            self.rewind(start)
        else:
            entry.keys, entry.values, entry._idx = self._before
            entry.offset = start
            self._rows = 0

    def _cut(self, rows: int) -> None:
        entry = self.entry
        entry.keys, entry.values = _first_rows(entry.keys, rows), _first_rows(entry.values, rows)
        entry._idx = rows


class Replaced:
    """Caches that forwards never write into but replace array by array (recurrent state): references are a snapshot.

    Only the two ends of the newest forward are held. `rebuild`, where a recording of that forward offers it, gives the
    arrays after its first n rows.
    """

    def __init__(self, entry: Any) -> None:
        self.entry = entry
        self.rebuild: Callable[[int], list[Any]] | None = None
        self._start = self._end = 0
        self._before = _attributes(entry)

    @property
    def anywhere(self) -> bool:
        return False

    def forgets(self, length: int) -> bool:
        return True

    def keep(self) -> State | None:
        return state_of(self.entry)

    def put_back(self, kept: State) -> None:
        _set_state(self.entry, kept)

    def slim(self) -> None:
        """State alone: no rows."""

    def mark(self, start: int, width: int) -> None:
        self._start, self._end = start, start + width
        self._before = _attributes(self.entry)
        self.rebuild = None

    def reaches(self, length: int) -> bool:
        inside = self._start <= length <= self._end
        return inside and (length in (self._start, self._end) or self.rebuild is not None)

    def rewind(self, length: int) -> None:
        if length == self._start:
            self.restore(length)
        elif length < self._end:
            assert self.rebuild is not None
            self.entry.cache = self.rebuild(length - self._start)
            self._end = length

    def restore(self, start: int) -> None:
        vars(self.entry).update(_copied(self._before))
        self._end = start


# Classes that belong to one model and are made like recurrent state: every forward replaces what they hold.
_REPLACED_BY_NAME = {("mlx_lm.models.deepseek_v41", "LayerCache")}

_KINDS: tuple[tuple[type, type[Growing] | type[Ring] | type[Replaced]], ...] = (
    (mlx_cache.KVCache, Growing),
    (mlx_cache.QuantizedKVCache, Growing),
    (mlx_cache.ConcatenateKVCache, Concatenated),
    (mlx_cache.ChunkedKVCache, Chunked),
    (mlx_cache.RotatingKVCache, Ring),
    (mlx_cache.ArraysCache, Replaced),
)


def rewinder_class(cache_class: type) -> type[Growing] | type[Ring] | type[Replaced] | None:
    """What rewinds caches of a class that is no list, or None where it is not known here."""
    for kind, made in _KINDS:
        if issubclass(cache_class, kind):
            return made
    return Replaced if (cache_class.__module__, cache_class.__name__) in _REPLACED_BY_NAME else None


def rewinder(entry: Any) -> Rewinder | None:
    """The rewinder for one cache, or None where its class is not known here."""
    made = rewinder_class(type(entry))
    return made(entry) if made is not None else None


def state_of(entry: Any) -> State:
    """Everything that a cache holds, in array handles of its own.

    A write into a slice of an array changes the array for everyone who holds that very object. Another handle on the
    same value keeps it, and costs nothing until such a write, which then copies.
    """
    state: State = tree_map(lambda part: copy.copy(part) if isinstance(part, mx.array) else part, vars(entry))
    return state


def _set_state(entry: Any, state: State) -> None:
    vars(entry).update(tree_map(lambda part: copy.copy(part) if isinstance(part, mx.array) else part, state))


def leaves(entries: list[Any]) -> Iterator[Any]:
    """The caches themselves, with every CacheList taken apart (its own `trim` stops half-way at a recurrent child)."""
    for entry in entries:
        if isinstance(entry, mlx_cache.CacheList):
            yield from leaves(list(entry.caches))
        else:
            yield entry


def _first_rows(array: mx.array, rows: int) -> mx.array | None:
    return array[..., :rows, :] if rows > 0 else None


def _attributes(entry: Any) -> dict[str, Any]:
    return _copied(vars(entry))


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, list) else value for name, value in attributes.items()}
