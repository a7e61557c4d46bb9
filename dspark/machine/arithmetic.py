"""How fast this machine multiplies matrices, in TFLOP/s (10¹² operations), where MLX computes."""

import logging
import time
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

SIDES = {"cpu": (256, 512, 1024), "gpu": (1024, 2048, 4096, 8192)}
ENOUGH_S = 0.1  # a product that takes this long is large enough
REPEATS = 3


@dataclass(frozen=True)
class Arithmetic:
    """Multiplications and additions in 10¹² a second, and how the figure came about."""

    tflop_s: float
    method: str


def measure() -> Arithmetic | None:
    """The best of growing square products, in float32 on a CPU and float16 on a GPU; None where MLX cannot compute.

    Takes about a second; on a CPU without a fast BLAS it stops at the small products.
    """
    try:
        import mlx.core as mx
    except Exception as error:  # a broken install raises whatever its loader raises
        log.debug("arithmetic cannot be measured without MLX: %s", error)
        return None
    gpu = mx.default_device().type == mx.DeviceType.gpu
    dtype, name = (mx.float16, "float16") if gpu else (mx.float32, "float32")
    best, method = 0.0, ""
    for side in SIDES["gpu" if gpu else "cpu"]:
        try:
            seconds = _product_seconds(side, dtype)
        except RuntimeError as error:  # a virtual GPU may refuse
            log.warning("matrix products cannot be measured: %s", error)
            break
        if (rate := 2 * side**3 / seconds / 1e12) > best:
            best, method = (
                rate,
                f"{name} product of {side} x {side} matrices on the {'GPU' if gpu else 'CPU'}, best run",
            )
        if seconds > ENOUGH_S:
            break
    return Arithmetic(float(f"{best:.3g}"), method) if best else None


def _product_seconds(side: int, dtype: Any) -> float:
    import mlx.core as mx

    left, right = mx.full((side, side), 0.5, dtype=dtype), mx.full((side, side), 0.25, dtype=dtype)
    mx.eval(left, right)
    times = []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        mx.eval(left @ right)
        times.append(time.perf_counter() - start)
    return min(times[1:])
