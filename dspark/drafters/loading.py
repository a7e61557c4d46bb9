"""From a drafter on disk to a drafter bound to its target."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from dspark.drafters.block import BlockDrafter
from dspark.drafters.config import DrafterConfig, LayerConfig
from dspark.drafters.model import DrafterModel
from dspark.drafters.packaging import Checkpoint, read
from dspark.drafters.tables import Tables
from dspark.errors import DrafterFormatError, PairingError, UsageError
from dspark.targets.target import Target

# How far back a drafter looks that was not trained with a window of its own.
DEFAULT_WINDOW = 4096
UNQUANTIZED = 16
_BITS = (2, 3, 4, 5, 6, 8, UNQUANTIZED)
_GROUP_SIZES = (64, 32)

Bits = int | Literal["auto"]
Window = int | Literal["auto"]


def load_drafter(path: Path, target: Target, *, bits: Bits = "auto", window: Window = "auto") -> BlockDrafter:
    """Load the drafter at `path` (a folder or a .gguf file) for `target`, in the target's activation type.

    `bits` quantizes its projections (16: not at all; auto: 4 on a GPU, 16 on a CPU, where packed weights are slower).
    `window` bounds how many tokens back it looks (0: no bound; auto: its own windows, or 4096 where it has none).

    Raises:
        DrafterFormatError: the packaging is unknown, or tensors are missing, extra or misshapen.
        PairingError: it was made for a target of another shape.
        CheckpointError: a file cannot be read.
        UsageError: `bits` or `window` mean nothing.
    """
    return bind(read(path), target, bits=bits, window=window)


def bind(
    checkpoint: Checkpoint,
    target: Target,
    *,
    bits: Bits = "auto",
    window: Window = "auto",
    reading: DrafterConfig | None = None,
) -> BlockDrafter:
    """`load_drafter` of a checkpoint that is open already; `reading` replaces its config's own conventions."""
    config = reading or checkpoint.config
    check_options(bits, window)
    check_target(config, target)
    dtype = target.dtype
    weights = _typed(checkpoint.tensors(), config, dtype)
    d2t = _mapping(weights, config, target.vocabulary)
    embedding = _table(weights, "embed_tokens.weight", (target.vocabulary, config.hidden_size))
    head = _table(weights, "lm_head.weight", (config.draft_vocabulary or target.vocabulary, config.hidden_size))
    _check_tables(config, embedding, head)
    config = replace(_resolved(config, weights), layers=_windowed(config.layers, window))
    model = DrafterModel(config, target.vocabulary)
    _fill(model, weights)
    own_embedding, own_head = _as_embedding(embedding), _as_linear(head)
    bits = default_bits() if bits == "auto" else bits
    if bits != UNQUANTIZED:
        own_embedding, own_head = _quantize(model, own_embedding, own_head, bits)
    mx.eval(model.parameters())
    return BlockDrafter(config, model, Tables(config, target, own_embedding, own_head, dtype), d2t)


def check_target(config: DrafterConfig, target: Target) -> None:
    """Raise `PairingError` if `config` is of a drafter for another target."""
    config.check_pairing(hidden_size=target.hidden_size, vocabulary=target.vocabulary, layers=target.depth)


def check_options(bits: Bits, window: Window) -> None:
    """Raise `UsageError` for `bits` or `window` that mean nothing."""
    if bits != "auto" and bits not in _BITS:
        raise UsageError(f"drafter bits must be one of {', '.join(map(str, _BITS))} or auto, not {bits}")
    if window != "auto" and window < 0:
        raise UsageError(f"the drafter window must be a number of tokens, 0 for all of them, or auto, not {window}")


def default_bits() -> int:
    return 4 if mx.default_device().type == mx.DeviceType.gpu else UNQUANTIZED


def _windowed(layers: tuple[LayerConfig, ...], window: Window) -> tuple[LayerConfig, ...]:
    if window == "auto":
        window = 0 if any(layer.window for layer in layers) else DEFAULT_WINDOW
    if window == 0:
        return layers
    return tuple(
        layer if layer.window is not None and layer.window <= window else replace(layer, window=window, per_row=False)
        for layer in layers
    )


def _resolved(config: DrafterConfig, weights: dict[str, mx.array]) -> DrafterConfig:
    """`config` with the width of the confidence head's tensor deciding what its file left unsaid."""
    if config.confidence is None or config.confidence.with_markov is not None:
        return config
    proj = weights.get("confidence_head.proj.weight")
    rank = config.markov.rank if config.markov else 0
    with_markov = proj is not None and rank > 0 and proj.shape[-1] == config.hidden_size + rank
    return replace(config, confidence=replace(config.confidence, with_markov=with_markov))


def _typed(tensors: dict[str, mx.array], config: DrafterConfig, dtype: mx.Dtype) -> dict[str, mx.array]:
    """All tensors in `dtype`, but for the integers of `d2t`; norms that are stored as offsets from one, whole."""
    out = {}
    for name, value in tensors.items():
        if config.norm_offset and name.endswith("norm.weight"):
            value = value.astype(mx.float32) + 1.0
        kind = mx.integer if name == "d2t" else mx.floating
        if not mx.issubdtype(value.dtype, kind):
            raise DrafterFormatError(
                f"the drafter's {name} holds {str(value.dtype).removeprefix('mlx.core.')}, which is no type for it; "
                "fetch it again"
            )
        out[name] = value if name == "d2t" else value.astype(dtype)
    unusable = sorted(name for name, value in out.items() if name != "d2t" and not bool(mx.isfinite(value).all()))
    if unusable:
        raise DrafterFormatError(f"the drafter's {_some(unusable)} holds values that are not finite; fetch it again")
    return out


def _mapping(weights: dict[str, mx.array], config: DrafterConfig, vocabulary: int) -> mx.array | None:
    offsets = weights.pop("d2t", None)
    if offsets is None:
        if config.reduced:
            raise DrafterFormatError("the drafter has a reduced vocabulary but no d2t table to map it back")
        return None
    if offsets.shape != (config.draft_vocabulary,):
        raise DrafterFormatError(
            f"d2t has shape {list(offsets.shape)}, the draft vocabulary has {config.draft_vocabulary} ids"
        )
    ids = mx.arange(offsets.shape[0], dtype=mx.int64) + offsets.astype(mx.int64)
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise PairingError(f"d2t maps outside the vocabulary of {vocabulary}; the drafter belongs to another target")
    return ids.astype(mx.int32)


def _table(weights: dict[str, mx.array], name: str, shape: tuple[int, int]) -> mx.array | None:
    table = weights.pop(name, None)
    if table is not None and table.shape != shape:
        raise DrafterFormatError(f"{name} has shape {list(table.shape)}, the config says {list(shape)}")
    return table


def _check_tables(config: DrafterConfig, embedding: mx.array | None, head: mx.array | None) -> None:
    if head is None and config.reduced:
        raise DrafterFormatError(
            "the drafter has a reduced vocabulary but no lm_head of its own; fetch the drafter again"
        )
    if config.hidden_size != config.target_hidden and (embedding is None or head is None):
        missing = "embed_tokens" if embedding is None else "lm_head"
        raise DrafterFormatError(
            f"the drafter is {config.hidden_size} wide and its target {config.target_hidden}, so it needs an {missing} "
            "of its own, which it lacks"
        )


def _fill(model: DrafterModel, weights: dict[str, mx.array]) -> None:
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


def _quantize(
    model: DrafterModel, embedding: nn.Embedding | None, head: nn.Linear | None, bits: int
) -> tuple[nn.Module | None, nn.Module | None]:
    """Quantize what is multiplied most: the layers' projections, the Markov output table and the drafter's own tables.

    fc, norms and the small heads keep their precision.
    """

    def chosen(path: str, module: nn.Module) -> bool | dict[str, int]:
        wanted = (path.startswith("layers.") and "conv" not in path) or path.endswith("markov_w2")
        group = _group_size(module) if wanted and isinstance(module, nn.Linear) else None
        return False if group is None else {"group_size": group, "bits": bits}

    nn.quantize(model, class_predicate=chosen)
    tables: list[nn.Module | None] = []
    for table in (embedding, head):
        group = None if table is None else _group_size(table)
        tables.append(table if table is None or group is None else table.to_quantized(group, bits))
    return tables[0], tables[1]


def _group_size(module: nn.Module) -> int | None:
    return next((size for size in _GROUP_SIZES if module.weight.shape[-1] % size == 0), None)


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
