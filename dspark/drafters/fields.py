"""The parts that drafter packagings share, validated by name."""

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dspark.drafters.config import ConfidenceConfig, LayerConfig, MarkovConfig, RopeConfig
from dspark.drafters.rope import is_positive, rope_scaling
from dspark.errors import DrafterFormatError

Positive = Field(gt=0)
# Far above any drafter that exists; what lies beyond is a broken file that would exhaust memory.
FEW, MOST = 256, 1 << 22
Few = Field(gt=0, le=FEW)
Size = Field(gt=0, le=MOST)
_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


class Fields(BaseModel):
    """A group of config fields. Unknown ones are ignored: much of a drafter's config is noise from the target's.

    Known ones are taken as they stand: `true` is no 1, and "8" no number.
    """

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), strict=True, allow_inf_nan=False)


class Backbone(Fields):
    """A Qwen3-style stack of decoder layers."""

    hidden_size: int = Size
    target_hidden_size: int | None = None
    intermediate_size: int = Size
    num_hidden_layers: int = Few
    num_attention_heads: int = Size
    num_key_value_heads: int = Size
    head_dim: int = Size
    rms_norm_eps: float = Positive
    hidden_act: str = "silu"
    attention_bias: bool = False
    max_position_embeddings: int | None = None
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    vocab_size: int = Size

    def theta(self) -> float:
        """The rotary base, from either of the two places it is kept in; never a silent default."""
        nested = (self.rope_parameters or {}).get("rope_theta")
        theta = self.rope_theta if self.rope_theta is not None else nested
        if theta is None:
            raise DrafterFormatError("the drafter's config lacks rope_theta; a guessed one would ruin its drafts")
        if nested is not None and self.rope_theta is not None and nested != self.rope_theta:
            raise DrafterFormatError(f"the drafter's config gives two rope_theta, {self.rope_theta:g} and {nested}")
        if not is_positive(theta):
            raise DrafterFormatError(f"the drafter's config gives a rope_theta of {theta}, which turns nothing")
        return float(theta)

    def rope(self, *, scaled: bool, traditional: bool = False) -> RopeConfig:
        """Rotary positions; `scaled` says whether scaling fields are the drafter's own or noise."""
        scaling = (
            rope_scaling(self.rope_parameters, self.rope_scaling, self.max_position_embeddings) if scaled else None
        )
        return RopeConfig(theta=self.theta(), traditional=traditional, scaling=scaling)

    def canonical(self) -> dict[str, Any]:
        """The terms of `DrafterConfig` that come straight from here."""
        if self.hidden_act not in _ACTIVATIONS:
            raise DrafterFormatError(
                f"the drafter's hidden_act {self.hidden_act} is not supported; known are {', '.join(_ACTIVATIONS)}"
            )
        if self.num_attention_heads * self.head_dim > MOST:
            raise DrafterFormatError(
                f"the drafter's {self.num_attention_heads} heads of {self.head_dim} features cannot be meant; "
                "fetch its config again"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise DrafterFormatError(
                f"the drafter's num_attention_heads {self.num_attention_heads} is no multiple of its "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        return {
            "hidden_size": self.hidden_size,
            "target_hidden": self.target_hidden_size or self.hidden_size,
            "heads": self.num_attention_heads,
            "kv_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "eps": self.rms_norm_eps,
            "activation": _ACTIVATIONS[self.hidden_act],
            "attention_bias": self.attention_bias,
            "vocabulary": self.vocab_size,
        }

    def full_attention(self) -> tuple[LayerConfig, ...]:
        """Every layer sees everything, whatever windows were copied from the target."""
        return (LayerConfig(),) * self.num_hidden_layers


class Windows(Fields):
    """Sliding windows of drafter layers, in the packagings where they are the drafter's own."""

    layer_types: list[str] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None

    def windows(self, layers: int) -> tuple[int | None, ...]:
        """The window of each layer, None where it sees everything."""
        kinds = self.layer_types or ["full_attention"] * layers
        if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
            raise DrafterFormatError(
                f"the drafter's layer_types {kinds} must name full_attention or sliding_attention for each of its "
                f"{layers} layers"
            )
        if "sliding_attention" not in kinds or self.use_sliding_window is False:
            return (None,) * layers
        if not self.sliding_window or self.sliding_window < 1:
            raise DrafterFormatError(
                "the drafter has sliding_attention layers but no sliding_window; fetch its config again"
            )
        return tuple(self.sliding_window if kind == "sliding_attention" else None for kind in kinds)


class Block(Fields):
    """What a drafter reads of its target, and how wide its block is."""

    block_size: int = Few
    mask_token_id: int = Field(ge=0)
    target_layer_ids: list[int]
    num_target_layers: int | None = None


class SequentialHeads(Fields):
    """Markov and confidence head, the same keys in every DSpark packaging."""

    markov_rank: int = Field(default=0, ge=0, le=1 << 16)
    markov_head_type: Literal["vanilla", "gated", "rnn"] = "vanilla"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool | None = None
    confidence_temperatures: list[float] | None = None

    def markov(self) -> MarkovConfig | None:
        if self.markov_rank == 0:
            return None
        return MarkovConfig(kind=self.markov_head_type, rank=self.markov_rank)

    def confidence(self, block: int) -> ConfidenceConfig | None:
        """The confidence head of a drafter of `block` proposals."""
        if not self.enable_confidence_head:
            return None
        if self.confidence_head_with_markov and self.markov_rank == 0:
            raise DrafterFormatError("the drafter's confidence head reads a Markov head, but markov_rank is 0")
        temperatures = self.confidence_temperatures
        if temperatures is not None and (len(temperatures) != block or min(temperatures) <= 0):
            raise DrafterFormatError(
                f"the drafter's confidence_temperatures must be {block} positive numbers, one per proposal, "
                f"not {temperatures}"
            )
        return ConfidenceConfig(
            with_markov=self.confidence_head_with_markov,
            temperatures=None if temperatures is None else tuple(temperatures),
        )


class DSparkHead(Backbone, Block, SequentialHeads):
    """A full-vocabulary DSpark head whose every slot proposes: what three packagings say in the same words."""

    def dspark(self, quantization: object) -> dict[str, Any]:
        """The terms of `DrafterConfig` that come straight from here; `quantization` is the file's own, unread."""
        return {
            "kind": "dspark",
            "block": self.block_size,
            "layout": "next",
            "taps": check_taps(self.target_layer_ids),
            "mask_id": self.mask_token_id,
            "target_layers": self.num_target_layers,
            "draft_vocabulary": self.vocab_size,
            "markov": self.markov(),
            "confidence": self.confidence(self.block_size),
            "quantization": quantization,
            **self.canonical(),
        }


def anchor_predicts(block_size: int, speculative_tokens: int | None, sample_from_anchor: bool | None) -> bool | None:
    """Whether slot 0 makes the first proposal (a block of n slots then proposes n), or is unused (n - 1).

    The number of speculative tokens decides first, then the explicit field; None where neither is given.

    Raises:
        DrafterFormatError: the two contradict each other, or the count fits neither reading.
    """
    if speculative_tokens is None:
        return sample_from_anchor
    if speculative_tokens not in (block_size, block_size - 1):
        raise DrafterFormatError(
            f"the drafter proposes {speculative_tokens} tokens with a block_size of {block_size}; one of them is wrong"
        )
    by_count = speculative_tokens == block_size
    if sample_from_anchor is not None and sample_from_anchor != by_count:
        raise DrafterFormatError(
            f"the drafter's sample_from_anchor {sample_from_anchor} contradicts its {speculative_tokens} tokens "
            f"of a block of {block_size}"
        )
    return by_count


def slots(block_size: int, predicts: bool) -> dict[str, Any]:
    """`block` and `layout` of a block of `block_size` slots.

    Raises:
        DrafterFormatError: nothing is left to propose.
    """
    block = block_size if predicts else block_size - 1
    if block < 1:
        raise DrafterFormatError(f"the drafter's block_size {block_size} leaves no token to propose")
    return {"block": block, "layout": "next" if predicts else "same"}


def check_taps(taps: list[int]) -> tuple[int, ...]:
    """Canonical tap ids: strictly increasing, none below -1."""
    if not taps or taps != sorted(set(taps)) or taps[0] < -1:
        raise DrafterFormatError(f"the drafter's tap ids {taps} (canonical numbering) are not increasing from -1 on")
    return tuple(taps)


def lifted(fields: dict[str, Any], *groups: str) -> dict[str, Any]:
    """`fields` with the entries of the nested `groups` at the top level.

    Raises:
        DrafterFormatError: the same key has two values.
    """
    out = dict(fields)
    for group in groups:
        nested = out.pop(group, None) or {}
        if not isinstance(nested, dict):
            raise DrafterFormatError(f"the drafter's {group} is not an object; fetch its config again")
        for key, value in nested.items():
            if out.get(key) is not None and value is not None and out[key] != value:
                raise DrafterFormatError(
                    f"the drafter's config gives two values of {key}, {out[key]} and ({group}) {value}; one is wrong"
                )
            if value is not None:
                out[key] = value
    return out


F = TypeVar("F", bound=Fields)


def parse(kind: type[F], values: object, where: str) -> F:
    """Validate `values` as `kind`; the error names every missing or wrong field."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc'])) or where}: {f['msg'].lower()}" for f in error.errors())
        raise DrafterFormatError(f"the drafter's config ({where}) is incomplete or wrong: {faults}") from error
