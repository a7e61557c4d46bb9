"""What one decoded token moves through memory: plain numbers, told by `dspark.targets.weighing`."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["full", "latent", "window", "recurrent"]


@dataclass(frozen=True)
class CacheLayers:
    """The layers whose caches are of one kind, together.

    `row_bytes` is what one token adds and what is read again for it at every later one; of a `window` only the newest
    `window_tokens` are kept. A `recurrent` state has no rows: `state_bytes` are read and written at every token.
    """

    kind: Kind
    layers: int
    row_bytes: int = 0
    window_tokens: int | None = None
    state_bytes: int = 0

    def bytes_moved(self, depth: int) -> int:
        """Bytes per token behind `depth` tokens."""
        rows = depth if self.window_tokens is None else min(depth, self.window_tokens)
        return rows * self.row_bytes + 2 * self.state_bytes


@dataclass(frozen=True)
class Traffic:
    """Reads of one decoding step of one sequence.

    `weight_bytes` counts scales and biases of quantized layers, the output head, of the routed experts those that one
    token wakes, and each pass of a looped stack; not the input embedding, of which one row is read. `weights` is the
    number of weights that take part, `parameter_bytes` all of them as they lie in memory.
    """

    weight_bytes: int
    weights: int
    head_bytes: int
    expert_bytes: int
    parameter_bytes: int
    caches: tuple[CacheLayers, ...]
    context_window: int
    source: Literal["checkpoint", "config", "loaded"]

    def cache_bytes(self, depth: int) -> int:
        """Bytes that keys, values and states add behind `depth` tokens."""
        return sum(layers.bytes_moved(depth) for layers in self.caches)

    def bytes_per_token(self, depth: int) -> int:
        """All bytes of a step behind `depth` tokens."""
        return self.weight_bytes + self.cache_bytes(depth)

    @property
    def growth_bytes(self) -> int:
        """Bytes that each further token takes in caches that grow without bound."""
        return sum(layers.row_bytes for layers in self.caches if layers.window_tokens is None)
