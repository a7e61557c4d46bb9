"""Which precision decodes one token fastest on this machine, found by trying.

No rule would do: 4-bit weights win on a GPU because there is less to read, and lose on a CPU with a good BLAS, where
they are computed slowly.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

Precision = Literal["fp32", "bf16", "q4"]

HIDDEN, KEYS, INNER = 576, 192, 1536  # the demo target's widths
MATRICES = (
    (HIDDEN, HIDDEN),
    (KEYS, HIDDEN),
    (KEYS, HIDDEN),
    (HIDDEN, HIDDEN),
    *2 * ((INNER, HIDDEN),),
    (HIDDEN, INNER),
)
CPU_LAYERS, GPU_LAYERS = 4, 16  # weights past the caches, on the slower device within the budget
GROUP, BITS = 32, 4
ROUNDS = 7
BUDGET_S = 0.6
TIE = 1.05


def fastest_precision() -> tuple[Precision, str]:
    """The precision whose one-row products are quickest here, and a sentence with the figures. Takes under a second.

    Among precisions within 5 % of the quickest the most exact one is taken. Raises ImportError without MLX.
    """
    milliseconds = measure()
    limit = min(milliseconds.values()) * TIE
    chosen = next(precision for precision, time_ms in milliseconds.items() if time_ms <= limit)
    figures = ", ".join(f"{precision} {time_ms:.1f} ms" for precision, time_ms in milliseconds.items())
    return chosen, f"{chosen} multiplies one token's rows fastest on this machine ({figures})"


def measure() -> dict[Precision, float]:
    """Median milliseconds for one token through a few layers' matrices, most exact precision first."""
    import mlx.core as mx

    layers = GPU_LAYERS if mx.default_device().type == mx.DeviceType.gpu else CPU_LAYERS
    shapes = MATRICES * layers
    steps: dict[Precision, Callable[[], None]] = {
        "fp32": _dense(shapes, mx.float32),
        "bf16": _dense(shapes, mx.bfloat16),
        "q4": _quantized(shapes),
    }
    for step in steps.values():
        step()
    times: dict[Precision, list[float]] = {precision: [] for precision in steps}
    end = time.perf_counter() + BUDGET_S
    for _ in range(ROUNDS):
        # Interleaved, so that a slow moment of the machine meets all of them.
        for precision, step in steps.items():
            start = time.perf_counter()
            step()
            times[precision].append((time.perf_counter() - start) * 1e3)
        if time.perf_counter() > end:
            break
    return {precision: statistics.median(measured) for precision, measured in times.items()}


def _dense(shapes: tuple[tuple[int, int], ...], dtype: Any) -> Callable[[], None]:
    import mlx.core as mx

    weights = [mx.full(shape, 0.01, dtype=dtype) for shape in shapes]
    rows = {width: mx.full((1, width), 0.1, dtype=dtype) for width in (HIDDEN, INNER)}
    return lambda: mx.eval([rows[weight.shape[1]] @ weight.T for weight in weights])


def _quantized(shapes: tuple[tuple[int, int], ...]) -> Callable[[], None]:
    """Float32 activations and half-precision scales, as the demo target has them."""
    import mlx.core as mx

    weights = [
        (
            mx.full((outputs, inputs * BITS // 32), 0x12345678, dtype=mx.uint32),
            mx.full((outputs, inputs // GROUP), 0.01, dtype=mx.float16),
            mx.full((outputs, inputs // GROUP), 0.01, dtype=mx.float16),
        )
        for outputs, inputs in shapes
    ]
    rows = {width: mx.full((1, width), 0.1, dtype=mx.float32) for width in (HIDDEN, INNER)}

    def step() -> None:
        mx.eval(
            [
                mx.quantized_matmul(
                    rows[words.shape[1] * 32 // BITS], words, scales, biases, group_size=GROUP, bits=BITS
                )
                for words, scales, biases in weights
            ]
        )

    return step
