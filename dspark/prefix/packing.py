"""Caches as plain data: a tree of numbers and texts for JSON, and the arrays that it names by number."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as mlx_cache

from dspark.prefix.filing import Tensor
from dspark.targets.caches import Checkpoint, TargetCache
from dspark.targets.rewind import leaves, state_of

# What the format calls MLX's types. numpy has no bfloat16: it travels as the 16 bits that it is.
_NAMES = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.bool_: "BOOL",
    mx.uint8: "U8",
    mx.uint16: "U16",
    mx.uint32: "U32",
    mx.uint64: "U64",
    mx.int8: "I8",
    mx.int16: "I16",
    mx.int32: "I32",
    mx.int64: "I64",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


class Unpackable(Exception):
    """A cache holds something that is neither array nor number."""


def pack_cache(cache: TargetCache, arrays: list[mx.array]) -> dict[str, Any]:
    """`cache` without room to spare; its arrays are added to `arrays`."""
    lean = cache.fork(cache.length)
    return {
        "leaves": [[type(leaf).__name__, pack(state_of(leaf), arrays)] for leaf in leaves(lean.entries)],
        "checkpoints": [
            [one.length, one.reason, [None if state is None else pack(state, arrays) for state in one.states]]
            for one in lean.checkpoints
        ],
    }


def unpack_cache(packed: dict[str, Any], blank: TargetCache, length: int, arrays: list[mx.array]) -> TargetCache:
    """The cache of `length` tokens that was packed; `blank` is an empty one of the same model.

    Raises:
        Unpackable: it is of other layers.
    """
    entries = [
        mlx_cache.QuantizedKVCache() if type(entry) is mlx_cache.KVCache and name == "QuantizedKVCache" else entry
        for entry, name in _named(blank.entries, [name for name, _ in packed["leaves"]])
    ]
    for leaf, (name, state) in zip(leaves(entries), packed["leaves"], strict=True):
        if type(leaf).__name__ != name:
            raise Unpackable(f"a layer's cache is a {type(leaf).__name__}, the file's a {name}")
        vars(leaf).update(unpack(state, arrays))
    checkpoints = [
        Checkpoint(at, reason, tuple(None if state is None else unpack(state, arrays) for state in states))
        for at, reason, states in packed["checkpoints"]
    ]
    return blank.with_entries(entries, length, tuple(checkpoints))


def _named(entries: list[Any], names: list[str]) -> list[tuple[Any, str | None]]:
    """Each entry with the name of its first leaf."""
    firsts, at = [], 0
    for entry in entries:
        firsts.append((entry, names[at] if at < len(names) else None))
        at += len(list(leaves([entry])))
    return firsts


def pack(tree: Any, arrays: list[mx.array]) -> Any:
    """`tree` for JSON. Raises Unpackable."""
    if isinstance(tree, mx.array):
        arrays.append(tree)
        return {"array": len(arrays) - 1}
    if isinstance(tree, dict):
        return {"dict": {name: pack(part, arrays) for name, part in tree.items()}}
    if isinstance(tree, list | tuple):
        return {type(tree).__name__: [pack(part, arrays) for part in tree]}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise Unpackable(f"a layer's cache holds a {type(tree).__name__}")


def unpack(packed: Any, arrays: list[mx.array]) -> Any:
    """The tree again."""
    if not isinstance(packed, dict):
        return packed
    ((kind, inside),) = packed.items()
    if kind == "array":
        return arrays[inside]
    if kind == "dict":
        return {name: unpack(part, arrays) for name, part in inside.items()}
    parts = [unpack(part, arrays) for part in inside]
    return tuple(parts) if kind == "tuple" else parts


def to_host(array: mx.array) -> Tensor:
    """A copy that no longer needs MLX."""
    bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return Tensor(_NAMES[array.dtype], tuple(array.shape), np.array(bits, order="C", copy=True))


def from_host(tensor: Tensor) -> mx.array:
    """The array again."""
    dtype = _TYPES[tensor.dtype]
    made = mx.array(tensor.data)
    return made.view(dtype) if dtype == mx.bfloat16 else made
