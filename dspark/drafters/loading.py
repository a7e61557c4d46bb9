"""From a drafter folder to a drafter bound to its target."""

from pathlib import Path
from typing import cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from dspark.drafters.config import DrafterConfig
from dspark.drafters.dspark import DSparkDrafter, DSparkModel
from dspark.drafters.packaging import read_config
from dspark.errors import CheckpointError, DrafterFormatError, PairingError
from dspark.targets.target import Target

_TABLES = ("embed_tokens.weight", "lm_head.weight")
# Redundant with d2t.
_IGNORED = frozenset({"t2d"})


def load_drafter(folder: Path, target: Target) -> DSparkDrafter:
    """Load the drafter in `folder` for `target`, in the target's activation type.

    Raises:
        DrafterFormatError: the packaging is unknown, or tensors are missing, extra or misshapen.
        PairingError: it was made for a target of another shape.
        CheckpointError: a weight file cannot be read.
    """
    config = read_config(folder)
    config.check_pairing(hidden_size=target.hidden_size, vocabulary=target.vocabulary, layers=len(target.layers))
    dtype = _activation_type(target)
    weights = _dequantized(_read_weights(folder), config, dtype)
    d2t = _mapping(weights, config)
    embedding = _table(weights, "embed_tokens.weight", (config.vocabulary, config.hidden_size))
    head = _table(weights, "lm_head.weight", (config.draft_vocabulary, config.hidden_size))
    if head is None and config.reduced:
        raise DrafterFormatError(
            "the drafter has a reduced vocabulary but no lm_head of its own; fetch the drafter again"
        )
    model = DSparkModel(config)
    _fill(model, weights)
    mx.eval(model.parameters())
    return DSparkDrafter(
        config,
        model,
        target,
        embedding=_as_embedding(embedding),
        head=_as_linear(head),
        d2t=d2t,
    )


def _read_weights(folder: Path) -> dict[str, mx.array]:
    files = sorted(folder.glob("model*.safetensors"))  # the same rule as mlx-lm's loader
    if not files:
        raise CheckpointError(f"{folder} has no model*.safetensors file; fetch the drafter again")
    weights: dict[str, mx.array] = {}
    for file in files:
        try:
            weights.update(cast(dict[str, mx.array], mx.load(str(file))))
        except (RuntimeError, ValueError, OSError) as error:
            raise CheckpointError(
                f"{file} cannot be read (truncated?); delete it and fetch the drafter again"
            ) from error
    return {name: value for name, value in weights.items() if name not in _IGNORED}


def _dequantized(weights: dict[str, mx.array], config: DrafterConfig, dtype: mx.Dtype) -> dict[str, mx.array]:
    """All floating-point tensors in `dtype`, stored groups unpacked."""
    out = {}
    for name, value in weights.items():
        base = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if f"{base}.scales" in weights:
            if config.quantization is None:
                raise DrafterFormatError(f"{name} is quantized but the drafter's config has no `quantization`")
            scales, biases = (weights[f"{base}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
            group, bits = config.quantization["group_size"], config.quantization["bits"]
            value = mx.dequantize(value, scales, biases, group_size=group, bits=bits)
        out[name] = value.astype(dtype) if mx.issubdtype(value.dtype, mx.floating) else value
    return out


def _mapping(weights: dict[str, mx.array], config: DrafterConfig) -> mx.array | None:
    offsets = weights.pop("d2t", None)
    if offsets is None:
        if config.reduced:
            raise DrafterFormatError("the drafter has a reduced vocabulary but no d2t table to map it back")
        return None
    if offsets.shape != (config.draft_vocabulary,):
        raise DrafterFormatError(
            f"d2t has shape {list(offsets.shape)}, the draft vocabulary has {config.draft_vocabulary} ids"
        )
    ids = mx.arange(config.draft_vocabulary, dtype=mx.int32) + offsets.astype(mx.int32)
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocabulary:
        raise PairingError(
            f"d2t maps outside the vocabulary of {config.vocabulary}; the drafter belongs to another target"
        )
    return ids


def _table(weights: dict[str, mx.array], name: str, shape: tuple[int, int]) -> mx.array | None:
    table = weights.pop(name, None)
    if table is not None and table.shape != shape:
        raise DrafterFormatError(f"{name} has shape {list(table.shape)}, the config says {list(shape)}")
    return table


def _fill(model: DSparkModel, weights: dict[str, mx.array]) -> None:
    expected = dict(tree_flatten(model.parameters()))
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing:
        raise DrafterFormatError(f"the drafter lacks {_some(missing)}; fetch it again")
    if extra:
        raise DrafterFormatError(f"the drafter has tensors that this packaging does not: {_some(extra)}")
    for name, value in weights.items():
        if value.shape != expected[name].shape:
            raise DrafterFormatError(
                f"{name} has shape {list(value.shape)}, the config says {list(expected[name].shape)}"
            )
    model.load_weights(list(weights.items()))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _as_embedding(table: mx.array | None) -> nn.Embedding | None:
    if table is None:
        return None
    module = nn.Embedding(1, 1)
    module.weight = table
    return module


def _as_linear(table: mx.array | None) -> nn.Linear | None:
    if table is None:
        return None
    module = nn.Linear(1, 1, bias=False)
    module.weight = table
    return module


def _activation_type(target: Target) -> mx.Dtype:
    return target.embedding(mx.array([[0]])).dtype
