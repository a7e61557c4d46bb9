"""Drafters that cannot be run here, each refused with its reason (specification 5.8)."""

from collections.abc import Iterable
from typing import Any

from dspark.errors import DrafterFormatError

_EMBEDDED = "it is a drafter inside the target checkpoint (with experts and hyper-connections), not one of its own"
_LOG_SNR = "it is conditioned on a noise level (log_snr_conditioning), which would be ignored silently"
_MASK_EMBEDDING = "it has a separate mask embedding, which would be ignored silently"

# Parts of tensor names.
_BY_TENSOR = (
    ("mtp.", _EMBEDDED),
    ("log_snr", _LOG_SNR),
    ("mask_embedding", _MASK_EMBEDDING),
    ("decoder_layer.", "its layer structure (Kimi or MiniMax naming) is unknown"),
    ("qkv_proj", "its fused qkv_proj (Laguna) is an unsupported architecture"),
    ("g_proj", "its g_proj (Laguna) is an unsupported architecture"),
    ("aux_hidden_norms", "its aux_hidden_norms (Laguna) are an unsupported architecture"),
    ("prefix_gru", "it is a domino drafter, another algorithm"),
    ("embed_proj", "it is a domino drafter, another algorithm"),
)
_OTHER_ALGORITHMS = ("eagle", "medusa", "mtp", "domino")
_FULL_MODEL = ("ForCausalLM", "ForConditionalGeneration")


def refuse_config(fields: dict[str, Any]) -> None:
    """Raise `DrafterFormatError` if the config is of a drafter that is known not to work here."""
    architecture = _architecture(fields)
    nested = fields.get("dflash_config")
    nested = nested if isinstance(nested, dict) else {}
    if architecture.endswith(_FULL_MODEL) and any(key.startswith(("dspark_", "mtp")) for key in fields):
        raise _refusal(_EMBEDDED)
    if architecture.lower().startswith(_OTHER_ALGORITHMS):
        raise _refusal(f"its architecture {architecture} is another algorithm; only DSpark and DFlash are supported")
    if fields.get("log_snr_conditioning") or nested.get("log_snr_conditioning"):
        raise _refusal(_LOG_SNR)
    projector = nested.get("projector_type") or fields.get("projector_type")
    if projector not in (None, "dspark", "dflash"):
        raise _refusal(f"its projector_type {projector} is another algorithm")


def refuse_tensors(names: Iterable[str]) -> None:
    """Raise `DrafterFormatError` if tensor names show a drafter that is known not to work here."""
    for name in sorted(names):
        reason = next((reason for part, reason in _BY_TENSOR if f".{part}" in f".{name}"), None)
        if reason is not None:
            raise _refusal(f"{reason} (tensor {name})")
        if name.endswith(("_packed", "weight_scale", "weight_scale_2", "weight_global_scale", "_scale_inv")):
            raise _refusal(
                f"its weights are stored as NVFP4, FP8 or compressed tensors ({name}), an unsupported quantization; "
                "fetch its bf16 build"
            )


def refuse_files(names: Iterable[str]) -> None:
    """Raise `DrafterFormatError` if files beside the weights hold a part of the drafter that is not read."""
    if "mask_embedding.pt" in names:
        raise _refusal(f"{_MASK_EMBEDDING} (mask_embedding.pt)")


def _architecture(fields: dict[str, Any]) -> str:
    names = fields.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _refusal(reason: str) -> DrafterFormatError:
    return DrafterFormatError(f"this drafter cannot be used: {reason}")
