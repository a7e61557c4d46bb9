"""Reading one-dimensional MLX arrays back to the host, with a type."""

from typing import cast

import mlx.core as mx


def integers(array: mx.array) -> list[int]:
    """The values of an integer array [n]; waits for its evaluation."""
    return cast(list[int], array.tolist())


def floats(array: mx.array) -> list[float]:
    """The values of a floating-point array [n]; waits for its evaluation."""
    return cast(list[float], array.tolist())
