"""The one canonical description of a drafter, whatever packaging it came in."""

from dataclasses import dataclass
from typing import Any, Literal

from dspark.errors import PairingError

# Layer numbering of the taps, which slot predicts first, and which dimensions a rotation pairs.
Convention = Literal["taps", "layout", "rope"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions: `rotated` leading dimensions of a head turn (None: all), `traditional` pairs neighbours.

    `scaling` is mlx-lm's `scaling_config`: YaRN, linear, llama3 or proportional, None for plain.
    """

    theta: float
    traditional: bool = False
    rotated: int | None = None
    scaling: dict[str, Any] | None = None


@dataclass(frozen=True)
class LayerConfig:
    """How a layer's block rows attend.

    `window` bounds how far back they see: with `per_row`, a row at position p sees positions above p - window; without,
    the whole block sees what lies at most `window` before the anchor. `causal` hides later rows of the block.
    """

    window: int | None = None
    causal: bool = False
    per_row: bool = True


@dataclass(frozen=True)
class MarkovConfig:
    """The sequential head: bias of step k from the token chosen at step k-1 through rank-`rank` tables."""

    kind: Literal["vanilla", "gated", "rnn"]
    rank: int


@dataclass(frozen=True)
class ConfidenceConfig:
    """The head that estimates, before a token is drawn, the chance that it will be accepted.

    `with_markov` None leaves it to the width of its tensor. `temperatures` [block] divide its logits, one per position,
    None where the head came without them.
    """

    with_markov: bool | None
    temperatures: tuple[float, ...] | None = None


@dataclass(frozen=True)
class ConvolutionConfig:
    """DFlash 2's dynamic causal convolutions: `taps` rows back, the same weights for `group` neighbouring channels."""

    taps: int
    group: int


@dataclass(frozen=True)
class SelectorConfig:
    """DFlash 2's candidate-path selector: the `top_k` best tokens of a slot, scored through rank-`rank` codebooks."""

    rank: int
    top_k: int


@dataclass(frozen=True)
class DrafterConfig:
    """A drafter in canonical terms.

    `taps` are canonical ids (the residual stream leaving layer i of the target). `block` counts proposals. With layout
    `next`, slot j, at the position of the anchor plus j, predicts the token one further, so the anchor's slot makes the
    first proposal; with `same`, each slot predicts the token at its own position and the anchor's slot none.
    `vocabulary` and `target_layers` are None where the packaging does not say. `open` names the conventions that
    neither the config nor a tensor's shape settles; the fields hold the likelier reading.
    """

    kind: Literal["dspark", "dflash"]
    packaging: str
    block: int
    layout: Literal["next", "same"]
    taps: tuple[int, ...]
    mask_id: int
    target_layers: int | None
    target_hidden: int
    vocabulary: int | None
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    eps: float
    rope: RopeConfig
    layers: tuple[LayerConfig, ...]
    draft_vocabulary: int | None = None
    markov: MarkovConfig | None = None
    confidence: ConfidenceConfig | None = None
    convolution: ConvolutionConfig | None = None
    selector: SelectorConfig | None = None
    # What tells the families of backbones apart.
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attention_scale: float | None = None
    attention_bias: bool = False
    gated_query: bool = False
    key_is_value: bool = False
    value_norm: bool = False
    sandwich_norms: bool = False
    attention_sinks: bool = False
    norm_offset: bool = False
    embedding_scale: float | None = None
    output_scale: float | None = None
    softcap: float | None = None
    quantization: dict[str, Any] | None = None
    verifier: str | None = None
    open: tuple[Convention, ...] = ()

    @property
    def rows(self) -> int:
        """Slots of the block, the anchor's included."""
        return self.block if self.layout == "next" else self.block + 1

    @property
    def reduced(self) -> bool:
        """Whether proposals come from a smaller vocabulary, mapped back through `d2t`."""
        if self.vocabulary is None or self.draft_vocabulary is None:
            return False
        return self.draft_vocabulary < self.vocabulary

    @property
    def causal(self) -> bool:
        """Whether no row of the block sees a later one, so that a shorter block gives the same rows."""
        return all(layer.causal for layer in self.layers)

    def check_pairing(self, *, hidden_size: int, vocabulary: int, layers: int) -> None:
        """Refuse a target of another shape, before any weight is read.

        Raises:
            PairingError: naming both values.
        """
        for what, mine, theirs in (
            ("hidden size", self.target_hidden, hidden_size),
            ("vocabulary", self.vocabulary, vocabulary),
            ("number of layers", self.target_layers, layers),
        ):
            if mine is not None and mine != theirs:
                raise PairingError(
                    f"the drafter is for a target of {what} {mine}, this model has {theirs}; give this model's drafter"
                )
        if not 0 <= self.mask_id < vocabulary:
            raise PairingError(
                f"the drafter's mask id {self.mask_id} is outside the model's vocabulary of {vocabulary}"
            )
        if self.taps[-1] >= layers - 1:
            raise PairingError(
                f"the drafter taps layer {self.taps[-1]}, this model ends at {layers - 1} and its last has no tap"
            )
