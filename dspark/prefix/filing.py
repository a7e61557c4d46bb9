"""Safetensors files with a checksum. No MLX here: files are written beside decoding, from another thread.

mlx's own writer refuses arrays without elements and wants its arrays alive; the format is a length, a JSON header and
the bytes.
"""

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.hub.storage import in_place_of
from dspark.regular import special

_HEADER_LIMIT_BYTES = 64_000_000
_METADATA = "__metadata__"
_NUMPY = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "BOOL": np.bool_,
    "U8": np.uint8,
    "U16": np.uint16,
    "U32": np.uint32,
    "U64": np.uint64,
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
}


@dataclass(frozen=True)
class Tensor:
    """`dtype` is the format's name, `data` the elements (of BF16 the bits, as 16-bit integers)."""

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any]


class Damaged(Exception):
    """The file is not what was written."""


def write(
    path: Path, about: dict[str, Any], tensors: list[Tensor], admitted: Callable[[int], bool] = lambda size: True
) -> int | None:
    """Write a file that is there as a whole or not at all; returns its size in bytes.

    `admitted` is asked beforehand whether that much may be written; None where not. Raises OSError.
    """
    chunks = [tensor.data.reshape(-1).view(np.uint8).data for tensor in tensors]
    header: dict[str, Any] = {}
    at = 0
    for number, (tensor, chunk) in enumerate(zip(tensors, chunks, strict=True)):
        offsets = [at, at := at + chunk.nbytes]
        header[str(number)] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
    checksum = _checksum(_text(about), header, chunks)
    header[_METADATA] = {"about": _text(about), "checksum": checksum}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    size = 8 + len(head) + at
    if not admitted(size):
        return None
    with in_place_of(path) as stream:
        stream.write(struct.pack("<Q", len(head)) + head)
        for chunk in chunks:
            stream.write(chunk)
    return size


def read_about(path: Path) -> tuple[dict[str, Any], Tensor]:
    """What a file says about itself, and its first tensor, neither checked. Raises OSError, Damaged."""
    if special(path):
        raise Damaged("it is no file")
    with path.open("rb") as stream:
        start, header = _head(stream.read(8), stream.read, path.stat().st_size)
        first = header["0"]
        begin, end = first["data_offsets"]
        stream.seek(start + begin)
        return _about(header), _tensor(first, memoryview(stream.read(end - begin)))


def read(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    """All of a file, checked against its checksum. Raises OSError, Damaged."""
    if special(path):
        raise Damaged("it is no file")
    data = path.read_bytes()
    at = 8

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        return data[at - count : at]

    start, header = _head(data[:8], take, len(data))
    about, body = _about(header), memoryview(data)[start:]
    said = header.pop(_METADATA)
    if said.get("checksum") != _checksum(said["about"], header, [body]):
        raise Damaged("its checksum is another")
    rows = [header[str(number)] for number in range(len(header))]
    return about, [_tensor(row, body[slice(*row["data_offsets"])]) for row in rows]


def _head(prefix: bytes, take: Any, size: int) -> tuple[int, dict[str, Any]]:
    """Where the data begins, and the header."""
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 2 <= length <= min(size, _HEADER_LIMIT_BYTES):
        raise Damaged("it does not begin like a safetensors file")
    try:
        header = json.loads(take(length))
        end = max(_end(row) for name, row in header.items() if name != _METADATA)
        _ = header[_METADATA]["about"], header["0"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged("its header cannot be read") from error
    if size != 8 + length + end:
        raise Damaged(f"it has {size} bytes and should have {8 + length + end}")
    return 8 + length, header


def _end(row: dict[str, Any]) -> int:
    """Where a tensor's bytes end. Raises ValueError, LookupError, TypeError."""
    begin, end = row["data_offsets"]
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
        raise ValueError("no place in a file")
    return end


def _about(header: dict[str, Any]) -> dict[str, Any]:
    try:
        about = json.loads(header[_METADATA]["about"])
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged("its header cannot be read") from error
    if not isinstance(about, dict):
        raise Damaged("its header says nothing about it")
    return about


def _tensor(row: dict[str, Any], data: memoryview) -> Tensor:
    try:
        shape = tuple(row["shape"])
        return Tensor(row["dtype"], shape, np.frombuffer(data, _NUMPY[row["dtype"]]).reshape(shape))
    except (ValueError, LookupError, TypeError) as error:
        raise Damaged("its header does not fit its data") from error


def _checksum(about: str, rows: dict[str, Any], chunks: list[memoryview]) -> str:
    checksum = zlib.crc32(f"{about}{_text(rows)}".encode())
    for chunk in chunks:
        checksum = zlib.crc32(chunk, checksum)
    return str(checksum)


def _text(about: dict[str, Any]) -> str:
    return json.dumps(about, sort_keys=True)
