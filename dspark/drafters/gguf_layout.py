"""Whether a GGUF file is what its header says, looked through before MLX maps it: MLX follows any number there.

Version 2 and 3: magic, version, number of tensors, number of entries; the entries; per tensor its name, dimensions,
type and offset; then the data, aligned.
"""

import math
import struct
from pathlib import Path
from typing import BinaryIO

from dspark.errors import CheckpointError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_MOST_DIMENSIONS = 4
_ALIGNMENT = b"general.alignment"
# Type → values in a block, bytes of a block.
_BLOCKS = {
    24: (1, 1),
    **dict.fromkeys((1, 25, 30), (1, 2)),
    **dict.fromkeys((0, 26), (1, 4)),
    **dict.fromkeys((27, 28), (1, 8)),
    **{kind: (32, width) for kind, width in ((2, 18), (3, 20), (6, 22), (7, 24), (8, 34))},
    **{kind: (256, width) for kind, width in ((10, 84), (11, 110), (12, 144), (13, 176), (14, 210))},
}


class _Broken(Exception):
    """What is wrong, as the end of a sentence that starts with the file's name."""


def check(file: Path) -> None:
    """Look through the header of `file`.

    Raises:
        CheckpointError: it is no GGUF, or something in it lies outside of it.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            _check(_Reader(stream, size), size)
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be read ({error.strerror}); check the path and its permissions"
        ) from error
    except _Broken as broken:
        raise CheckpointError(f"{file} {broken}; delete it and fetch it again") from broken


class _Reader:
    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self._left = size

    @property
    def left(self) -> int:
        return self._left

    def read(self, count: int) -> bytes:
        self._take(count)
        return self._stream.read(count)

    def skip(self, count: int) -> None:
        self._take(count)
        self._stream.seek(count, 1)

    def _take(self, count: int) -> None:
        if count > self._left:
            raise _Broken("ends inside its header")
        self._left -= count

    def number(self, code: str) -> int:
        return int(struct.unpack(f"<{code}", self.read(struct.calcsize(f"<{code}")))[0])

    def text(self) -> bytes:
        return self.read(self.number("Q"))


def _check(reader: _Reader, size: int) -> None:
    if size < 4 or reader.read(4) != b"GGUF":
        raise _Broken("is no GGUF file")
    if (version := reader.number("I")) not in (2, 3):
        raise _Broken(f"is GGUF of version {version}, not 2 or 3")
    tensors, entries = reader.number("Q"), reader.number("Q")
    alignment = 32
    for _ in range(entries):
        key, kind = reader.text(), reader.number("I")
        if key == _ALIGNMENT:
            alignment = reader.number("I") if kind == _UINT32 else 0
            if alignment < 1 or alignment & (alignment - 1):
                raise _Broken("has an alignment that is no power of two")
        else:
            _skip(reader, kind)
    ends = [_tensor_end(reader, alignment) for _ in range(tensors)]
    start = size - reader.left
    start += -start % alignment
    if max(ends, default=0) > size - start:
        raise _Broken(f"is cut short ({size:,} of {start + max(ends):,} bytes)")


def _skip(reader: _Reader, kind: int) -> None:
    if kind == _STRING:
        reader.text()
    elif kind in _SCALARS:
        reader.skip(struct.calcsize(f"<{_SCALARS[kind]}"))
    elif kind == _ARRAY:
        inner, count = reader.number("I"), reader.number("Q")
        if inner in _SCALARS:
            reader.skip(count * struct.calcsize(f"<{_SCALARS[inner]}"))
        elif inner == _STRING:
            for _ in range(count):
                reader.text()
        else:
            raise _Broken(f"has an array of type {inner}, which is unknown")
    else:
        raise _Broken(f"has an entry of type {kind}, which is unknown")


def _tensor_end(reader: _Reader, alignment: int) -> int:
    name = reader.text().decode(errors="replace")
    rank = reader.number("I")
    if not 1 <= rank <= _MOST_DIMENSIONS:
        raise _Broken(f"has a tensor of {rank} dimensions ({name[:64]!r})")
    shape = [reader.number("Q") for _ in range(rank)]
    kind, offset = reader.number("I"), reader.number("Q")
    if kind not in _BLOCKS:
        raise _Broken(f"stores {name[:64]!r} in type {kind}, which is unknown here")
    values, width = _BLOCKS[kind]
    if 0 in shape or shape[0] % values or offset % alignment:
        raise _Broken(f"has a tensor that is no whole number of blocks ({name[:64]!r})")
    return offset + math.prod(shape) // values * width
