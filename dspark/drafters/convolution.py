"""DFlash 2's dynamic causal convolution over the rows of a block (specification 4.2 a)."""

import mlx.core as mx
import mlx.nn as nn

from dspark.drafters.config import ConvolutionConfig


class DynamicConvolution(nn.Module):
    """A pair of short convolutions around a sub-layer, whose weights its normed input chooses.

    `base_kernel` [2, taps, d]: index 0 prepares the sub-layer's input, 1 finishes its output. The input adds to it one
    number per tap and group of channels. Rows before the anchor count as zero.
    """

    def __init__(self, config: ConvolutionConfig, hidden_size: int) -> None:
        super().__init__()
        self._taps, self._group = config.taps, config.group
        groups = hidden_size // config.group
        self.base_kernel = mx.zeros((2, config.taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * config.taps * groups, bias=False)

    def kernels(self, rows: mx.array) -> tuple[mx.array, mx.array]:
        """The two kernels [1, n, taps, d] for normed rows [1, n, d]."""
        count = rows.shape[1]
        change = self.kernel_projection(rows).reshape(1, count, 2, self._taps, -1)
        kernels = self.base_kernel + mx.repeat(change, self._group, axis=-1)
        return kernels[:, :, 0], kernels[:, :, 1]

    @staticmethod
    def convolve(rows: mx.array, kernel: mx.array) -> mx.array:
        """Row t of the result is Σ_o kernel[t, o] ⊙ rows[t - o]."""
        out = kernel[:, :, 0] * rows
        for back in range(1, min(kernel.shape[2], rows.shape[1])):
            shifted = mx.pad(rows[:, :-back], [(0, 0), (back, 0), (0, 0)])
            out = out + kernel[:, :, back] * shifted
        return out
