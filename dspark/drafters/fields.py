"""The parts that drafter packagings share, validated by name."""

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dspark.drafters.config import ConfidenceConfig, MarkovConfig
from dspark.errors import DrafterFormatError

Positive = Field(gt=0)


class Fields(BaseModel):
    """A group of config fields. Unknown ones are ignored: much of a drafter's config is noise from the target's."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class RopeParameters(Fields):
    rope_type: str = "default"
    rope_theta: float | None = None


class Backbone(Fields):
    """A Qwen3-style stack of decoder layers."""

    hidden_size: int = Positive
    intermediate_size: int = Positive
    num_hidden_layers: int = Positive
    num_attention_heads: int = Positive
    num_key_value_heads: int = Positive
    head_dim: int = Positive
    rms_norm_eps: float = Positive
    rope_theta: float | None = None
    rope_parameters: RopeParameters | None = None
    vocab_size: int = Positive

    def theta(self) -> float:
        """The rotary base, from either of the two places it is kept in; never a silent default."""
        nested = self.rope_parameters.rope_theta if self.rope_parameters else None
        theta = self.rope_theta if self.rope_theta is not None else nested
        if theta is None:
            raise DrafterFormatError("the drafter's config lacks rope_theta; a guessed one would ruin its drafts")
        if nested is not None and self.rope_theta is not None and nested != self.rope_theta:
            raise DrafterFormatError(f"the drafter's config gives two rope_theta, {self.rope_theta:g} and {nested:g}")
        return theta

    def canonical(self) -> dict[str, Any]:
        """The terms of `DrafterConfig` that come straight from here."""
        return {
            "hidden_size": self.hidden_size,
            "layers": self.num_hidden_layers,
            "heads": self.num_attention_heads,
            "kv_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "eps": self.rms_norm_eps,
            "rope_theta": self.theta(),
            "vocabulary": self.vocab_size,
        }


class SequentialHeads(Fields):
    """Markov and confidence head, the same keys in every DSpark packaging."""

    markov_rank: int = Field(default=0, ge=0)
    markov_head_type: Literal["vanilla", "gated", "rnn"] = "vanilla"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False

    def markov(self) -> MarkovConfig | None:
        if self.markov_rank == 0:
            return None
        if self.markov_head_type != "vanilla":
            raise DrafterFormatError(
                f"Markov heads of type {self.markov_head_type} are not supported yet; use a vanilla one"
            )
        return MarkovConfig(kind="vanilla", rank=self.markov_rank)

    def confidence(self) -> ConfidenceConfig | None:
        if not self.enable_confidence_head:
            return None
        if self.confidence_head_with_markov and self.markov_rank == 0:
            raise DrafterFormatError("the drafter's confidence head reads a Markov head, but markov_rank is 0")
        return ConfidenceConfig(with_markov=self.confidence_head_with_markov)


def check_taps(taps: list[int]) -> tuple[int, ...]:
    """Canonical tap ids: strictly increasing, none below -1."""
    if not taps or taps != sorted(set(taps)) or taps[0] < -1:
        raise DrafterFormatError(f"the drafter's tap ids {taps} (canonical numbering) are not increasing from -1 on")
    return tuple(taps)


F = TypeVar("F", bound=Fields)


def parse(kind: type[F], values: object, where: str) -> F:
    """Validate `values` as `kind`; the error names every missing or wrong field."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc'])) or where}: {f['msg'].lower()}" for f in error.errors())
        raise DrafterFormatError(f"the drafter's config ({where}) is incomplete or wrong: {faults}") from error
