"""Keys and values of one drafter layer: preallocated, written in place, cut where a block or an answer ends."""

import copy

import mlx.core as mx

_FIRST_ROWS = 256
# Doubling stops here: beyond it the buffer grows by this much, so that a long context wastes little memory.
_LARGEST_STEP_ROWS = 8192


class KeyValues:
    """Row i belongs to position i, its keys already turned to it. `length` rows are valid."""

    def __init__(self) -> None:
        self.length = 0
        self._keys: mx.array | None = None
        self._values: mx.array | None = None

    def extend(self, keys: mx.array, values: mx.array) -> None:
        """Add rows [1, H_kv, n, hd] behind the last one."""
        end = self.length + keys.shape[2]
        if self._keys is None or self._values is None or end > self._keys.shape[2]:
            self._keys, self._values = self._grown(self._keys, keys, end), self._grown(self._values, values, end)
        self._keys[..., self.length : end, :] = keys
        self._values[..., self.length : end, :] = values
        self.length = end

    def _grown(self, held: mx.array | None, like: mx.array, needed: int) -> mx.array:
        capacity = held.shape[2] if held is not None else 0
        capacity = max(capacity + min(max(capacity, _FIRST_ROWS), _LARGEST_STEP_ROWS), needed)
        _, heads, _, width = like.shape
        if held is None:
            return mx.zeros((1, heads, capacity, width), like.dtype)
        kept = held[..., : self.length, :]
        room = mx.zeros((1, heads, capacity - self.length, width), like.dtype)
        return mx.concatenate([kept, room], axis=2)

    def since(self, start: int) -> tuple[mx.array, mx.array]:
        """Keys and values of the rows from `start` on."""
        assert self._keys is not None and self._values is not None
        return self._keys[..., start : self.length, :], self._values[..., start : self.length, :]

    def truncate(self, length: int) -> None:
        """Forget the rows after the first `length`."""
        self.length = min(self.length, length)

    def fork(self, length: int) -> "KeyValues":
        """The first `length` rows in an object of their own; they share their arrays until one of them is written."""
        made = copy.copy(self)
        made.truncate(length)
        if self._keys is not None and self._values is not None:
            made._keys, made._values = self._keys[..., : made.length, :], self._values[..., : made.length, :]
        return made

    @classmethod
    def of(cls, keys: mx.array, values: mx.array) -> "KeyValues":
        """Rows [1, H_kv, n, hd] from elsewhere."""
        made = cls()
        made._keys, made._values, made.length = keys, values, int(keys.shape[2])
        return made

    @property
    def arrays(self) -> list[mx.array]:
        """The buffers."""
        return [] if self._keys is None or self._values is None else [self._keys, self._values]
