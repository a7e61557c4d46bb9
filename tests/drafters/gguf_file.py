"""Writing a GGUF file with 8-bit blocks by hand, since MLX only writes whole numbers of bytes per weight."""

import struct
from pathlib import Path

import mlx.core as mx
import numpy as np

_ALIGNMENT = 32
_F32, _Q8_0 = 0, 8
_STRING, _ARRAY, _INT32, _FLOAT32, _BOOL = 8, 9, 5, 6, 7


def write_q8(file: Path, tensors: dict[str, mx.array], metadata: dict) -> dict[str, mx.array]:
    """Write matrices whose rows are whole blocks as Q8_0 and the rest as F32; returns what the file then holds."""
    held, infos, data = {}, b"", b""
    for name, value in tensors.items():
        array = np.asarray(value, dtype=np.float32)
        packed = array.ndim == 2 and array.shape[1] % 32 == 0
        held[name], stored = _q8(array) if packed else (mx.array(array), array.tobytes())
        infos += _text(name) + struct.pack(f"<I{array.ndim}Q", array.ndim, *reversed(array.shape))
        infos += struct.pack("<IQ", _Q8_0 if packed else _F32, len(data))
        data += stored + b"\0" * (-len(stored) % _ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items()) + infos
    file.write_bytes(head + b"\0" * (-len(head) % _ALIGNMENT) + data)
    return held


def _q8(array: np.ndarray) -> tuple[mx.array, bytes]:
    blocks = array.reshape(-1, 32)
    scales = (np.abs(blocks).max(axis=1) / 127).astype(np.float16)
    whole = np.clip(np.round(blocks / scales[:, None].astype(np.float32)), -127, 127).astype(np.int8)
    stored = b"".join(scale.tobytes() + row.tobytes() for scale, row in zip(scales, whole, strict=True))
    return mx.array((whole * scales[:, None].astype(np.float32)).reshape(array.shape)), stored


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    plain = value.tolist() if isinstance(value, mx.array) else value
    if isinstance(plain, list):
        return struct.pack(f"<IIQ{len(plain)}i", _ARRAY, _INT32, len(plain), *plain)
    if isinstance(plain, bool):
        return struct.pack("<I?", _BOOL, plain)
    if isinstance(plain, int):
        return struct.pack("<Ii", _INT32, plain)
    return struct.pack("<If", _FLOAT32, plain)
