"""Tensors of a drafter folder, under canonical names and unpacked."""

import re
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from dspark.drafters.refusals import refuse_tensors
from dspark.errors import CheckpointError, DrafterFormatError

# Redundant with d2t, or copies of the target's own.
_IGNORED = re.compile(r"^(t2d$|verifier_)")
_PREFIX = re.compile(r"^(model|logit_head)\.")
# Parameters, not modules: some writers give them the suffix of a module's weight anyway.
_BARE = re.compile(r"(_codebook|base_kernel|layer_scalar|attention_sink_bias)\.weight$")
_BITS = (2, 3, 4, 5, 6, 8)
_GROUPS = (32, 64, 128)


def read_safetensors(folder: Path, quantization: dict[str, Any] | None) -> dict[str, mx.array]:
    """All tensors of `folder`, stored groups unpacked as `quantization` (of its config) says.

    Raises:
        CheckpointError: a file is missing or cannot be read.
        DrafterFormatError: the tensors are of a kind that is not supported.
    """
    files = sorted(folder.glob("model*.safetensors"))  # the same rule as mlx-lm's loader
    if not files:
        raise CheckpointError(f"{folder} has no model*.safetensors file; fetch the drafter again")
    stored: dict[str, mx.array] = {}
    for file in files:
        try:
            held = cast(dict[str, mx.array], mx.load(str(file)))
        except (RuntimeError, ValueError, OSError) as error:
            raise CheckpointError(
                f"{file} cannot be read (truncated?); delete it and fetch the drafter again"
            ) from error
        if twice := stored.keys() & held.keys():
            raise DrafterFormatError(
                f"{file.name} holds {min(twice)}, which another file holds too; remove one of them"
            )
        stored |= held
    refuse_tensors(stored)
    return unpacked(_canonical(stored), quantization)


def _canonical(stored: dict[str, mx.array]) -> dict[str, mx.array]:
    out: dict[str, mx.array] = {}
    for name, value in stored.items():
        if _IGNORED.search(name):
            continue
        if canonical_name(name) in out:
            raise DrafterFormatError(f"the drafter holds {canonical_name(name)} twice, once as {name}; fetch it again")
        out[canonical_name(name)] = value
    return out


def canonical_name(name: str) -> str:
    """A tensor's name without the prefixes and suffixes that packagings differ in."""
    name = _PREFIX.sub("", name)
    return name.removesuffix(".weight") if _BARE.search(name) else name


def unpacked(stored: dict[str, mx.array], quantization: dict[str, Any] | None) -> dict[str, mx.array]:
    """`stored` with each group of packed weight, scales and biases replaced by its values."""
    out = {}
    for name, value in stored.items():
        base = name.removesuffix(".weight")
        if name.endswith(".scales") or (
            name.endswith(".biases") and f"{name.removesuffix('.biases')}.scales" in stored
        ):
            continue
        if f"{base}.scales" in stored:
            group, bits = _grouping(name, base, quantization)
            if f"{base}.biases" not in stored:
                raise DrafterFormatError(f"{name} is quantized but has no {base}.biases; fetch the drafter again")
            scales, biases = (stored[f"{base}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            try:
                value = mx.dequantize(value, scales, biases, group_size=group, bits=bits)
            except ValueError as error:
                raise DrafterFormatError(
                    f"{name} is not packed in {bits} bits and groups of {group}, as the drafter's config says"
                ) from error
        out[name] = value
    return out


def _grouping(name: str, base: str, quantization: dict[str, Any] | None) -> tuple[int, int]:
    if quantization is None:
        raise DrafterFormatError(f"{name} is quantized but the drafter's config has no `quantization`")
    own = quantization.get(base)
    entry = own if isinstance(own, dict) else quantization
    mode = entry.get("mode", "affine")
    if mode != "affine" or entry.get("bits") not in _BITS:
        raise DrafterFormatError(
            f"{name} is stored in {entry.get('bits')} bits ({mode}), an unsupported quantization; fetch the bf16 build"
        )
    if entry.get("group_size") not in _GROUPS:
        raise DrafterFormatError(
            f"{name} is stored in groups of {entry.get('group_size')}, which is unsupported; fetch the bf16 build"
        )
    return int(entry["group_size"]), int(entry["bits"])
