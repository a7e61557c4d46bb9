"""Rotary scaling of a drafter, in the packagings where it is the drafter's own."""

import math
from typing import Any, TypeGuard

from dspark.errors import DrafterFormatError

_KNOWN = ("default", "linear", "llama3", "yarn")
# What each kind needs, lest mlx-lm take a default that the head was not trained with.
_NEEDS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_DIMENSIONAL = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")


def rope_scaling(
    parameters: dict[str, Any] | None, scaling: dict[str, Any] | None, max_positions: int | None
) -> dict[str, Any] | None:
    """mlx-lm's `scaling_config` from `rope_parameters` or the older `rope_scaling`, None for plain positions.

    Raises:
        DrafterFormatError: a kind that is not known, a missing number, or two descriptions that differ.
    """
    described = [
        {key: value for key, value in source.items() if key not in _DIMENSIONAL and value is not None}
        for source in (parameters, scaling)
        if source and _kind(source) != "default"
    ]
    if not described:
        return None
    found = described[0]
    if any(other != found for other in described[1:]):
        raise DrafterFormatError(
            "the drafter's rope_parameters and rope_scaling describe different scalings; one is wrong"
        )
    kind = _kind(found)
    if kind not in _KNOWN:
        raise DrafterFormatError(f"rotary scaling of type {kind} is not supported; known are {', '.join(_KNOWN)}")
    numbers = [key for key in (*_NEEDS[kind], "attention_factor") if key in found]
    wrong = [f"{key} {found[key]!r}" for key in numbers if not is_positive(found[key])]
    if wrong:
        raise DrafterFormatError(f"the drafter's {kind} rotary scaling has {', '.join(wrong)}, which is no scale")
    missing = [key for key in _NEEDS[kind] if key not in found]
    if missing:
        raise DrafterFormatError(
            f"the drafter's {kind} rotary scaling lacks {', '.join(missing)}; fetch its config again"
        )
    if kind == "yarn":
        # Keys and queries both grow by 0.1 ln f + 1, which is what mlx-lm does where `attention_factor` is silent.
        usual, given = 0.1 * math.log(found["factor"]) + 1, found.get("attention_factor")
        if given is not None and abs(given - usual) > 1e-3:
            raise DrafterFormatError(
                f"the drafter's YaRN attention_factor {given:g} is not the usual {usual:.4f}, which is not supported"
            )
    return {**found, "rope_type": kind, "max_position_embeddings": max_positions}


def is_positive(value: object) -> TypeGuard[float]:
    """Whether `value` is a number that something can be scaled by."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < math.inf


def _kind(source: dict[str, Any]) -> str:
    kind = str(source.get("rope_type") or source.get("type") or "default")
    # Positions of pictures and of text in three parts; for text alone the parts are equal, which is plain rotation.
    return "default" if kind == "mrope" else kind
