"""The one canonical description of a drafter, whatever packaging it came in."""

from dataclasses import dataclass
from typing import Any, Literal

from dspark.errors import PairingError


@dataclass(frozen=True)
class MarkovConfig:
    """The sequential head: bias of step k from the token chosen at step k-1 through rank-`rank` tables."""

    kind: Literal["vanilla"]
    rank: int


@dataclass(frozen=True)
class ConfidenceConfig:
    """The head that estimates, before a token is drawn, the chance that it will be accepted."""

    with_markov: bool


@dataclass(frozen=True)
class DrafterConfig:
    """A drafter in canonical terms.

    `taps` are canonical ids (the residual stream leaving layer i of the target). `block` counts proposals, all of them
    made by slots 0 .. block-1: slot j, at the position of the anchor plus j, predicts the token one further.
    """

    kind: Literal["dspark"]
    packaging: str
    block: int
    taps: tuple[int, ...]
    mask_id: int
    target_layers: int | None
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    eps: float
    rope_theta: float
    vocabulary: int
    draft_vocabulary: int
    markov: MarkovConfig | None
    confidence: ConfidenceConfig | None
    quantization: dict[str, Any] | None = None
    verifier: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def reduced(self) -> bool:
        """Whether proposals come from a smaller vocabulary, mapped back through `d2t`."""
        return self.draft_vocabulary < self.vocabulary

    def check_pairing(self, *, hidden_size: int, vocabulary: int, layers: int) -> None:
        """Refuse a target of another shape, before any weight is read.

        Raises:
            PairingError: naming both values.
        """
        for what, mine, theirs in (
            ("hidden size", self.hidden_size, hidden_size),
            ("vocabulary", self.vocabulary, vocabulary),
            ("number of layers", self.target_layers, layers),
        ):
            if mine is not None and mine != theirs:
                raise PairingError(
                    f"the drafter is for a target of {what} {mine}, this model has {theirs}; give this model's drafter"
                )
        if self.mask_id >= vocabulary:
            raise PairingError(
                f"the drafter's mask id {self.mask_id} is outside the model's vocabulary of {vocabulary}"
            )
        if self.taps[-1] >= layers - 1:
            raise PairingError(
                f"the drafter taps layer {self.taps[-1]}, this model ends at {layers - 1} and its last has no tap"
            )
