"""Weighing a model: what it reads per token, found by running one token through it lazily.

Nothing is computed and no weight is read from disk: shapes and types are all that is looked at. So every family that
mlx-lm knows is weighed by its own code, its routing, its loops and its caches included, and not by formulas of ours.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import cache as mlx_cache
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.utils import _get_classes, load_model

from dspark.errors import CheckpointError, DSparkError
from dspark.targets.caches import KVBits
from dspark.targets.rewind import leaves
from dspark.targets.target import CONTEXT_WINDOW_KEYS, DEFAULT_CONTEXT_WINDOW, Target
from dspark.targets.traffic import CacheLayers, Kind, Traffic

_EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)
_ROUTED = (SwitchLinear, QuantizedSwitchLinear)


def weigh(target: Target) -> Traffic:
    """A loaded target, with its KV bits.

    Raises:
        CheckpointError: its caches are of a kind that is not known here.
    """
    try:
        bits = target.kv_bits.bits if target.kv_bits else None
        return _weigh(target.model, target.context_window, bits, "loaded")
    except ValueError as error:
        raise _refused(target.path.name, error) from error


def weigh_folder(folder: Path, *, kv_bits: int | None = None, trust_remote_code: bool = False) -> Traffic:
    """A checkpoint on disk, by the headers of its weight files.

    Raises:
        CheckpointError: it is not a model that mlx-lm can load.
        PairingError: its keys and values do not divide into groups to quantize.
    """
    try:
        model, config = load_model(folder, lazy=True, trust_remote_code=trust_remote_code)
        return _weigh(model, _context_window(config), kv_bits, "checkpoint")
    except DSparkError:
        raise
    except Exception as error:  # whatever a broken folder makes the libraries raise
        raise _refused(str(folder), error) from error


def weigh_config(config: dict[str, Any], *, kv_bits: int | None = None) -> Traffic:
    """A model of which only the `config.json` is known, as that file says its weights are quantized.

    Raises:
        CheckpointError: mlx-lm cannot build such a model.
        PairingError: as `weigh_folder`.
    """
    try:
        config = dict(config)
        model_class, arguments = _get_classes(config)
        model = model_class(arguments.from_dict(config))
        model.set_dtype(_dtype(config))
        _quantize(model, config.get("quantization") or {})
        return _weigh(model, _context_window(config), kv_bits, "config")
    except DSparkError:
        raise
    except Exception as error:
        raise _refused("this config.json", error) from error


def _refused(name: str, error: Exception) -> CheckpointError:
    first = next((line for line in str(error).splitlines() if line.strip()), "no details")
    return CheckpointError(
        f"{name} cannot be weighed as a model ({type(error).__name__}: {first}); fetch it again, or take another"
    )


def _dtype(config: dict[str, Any]) -> mx.Dtype:
    fields = {**config, **(config.get("text_config") or {})}
    name = fields.get("dtype") or fields.get("torch_dtype")
    if name is None:
        raise ValueError("it does not say in which dtype its weights are")
    dtype = getattr(mx, str(name).removeprefix("torch."), None)
    if not isinstance(dtype, mx.Dtype):
        raise ValueError(f"dtype {name} is not one of MLX's")
    return dtype


def _quantize(model: nn.Module, quantization: dict[str, Any]) -> None:
    """As mlx-lm's conversion would: every layer that can be and whose width divides, unless the config excepts it."""
    if "bits" not in quantization:
        return

    def chosen(path: str, module: nn.Module) -> Any:
        if path in quantization:
            return quantization[path]
        fits = hasattr(module, "weight") and module.weight.shape[-1] % quantization["group_size"] == 0
        return hasattr(module, "to_quantized") and fits

    nn.quantize(
        model,
        group_size=quantization["group_size"],
        bits=quantization["bits"],
        mode=quantization.get("mode", "affine"),
        class_predicate=chosen,
    )


def _context_window(config: dict[str, Any]) -> int:
    text = config.get("text_config") or config
    return int(next((text[key] for key in CONTEXT_WINDOW_KEYS if text.get(key)), DEFAULT_CONTEXT_WINDOW))


def _weigh(
    model: nn.Module, context_window: int, kv_bits: int | None, source: Literal["checkpoint", "config", "loaded"]
) -> Traffic:
    entries = mlx_cache.make_prompt_cache(model)
    modules = dict(model.named_modules())
    with _counting(modules) as reads:
        logits = model(mx.array([[0]]), cache=entries)
    head = _head(modules, logits.shape[-1])
    totals = dict.fromkeys(("weights", "read", "head", "experts", "all"), 0)
    for name, array in tree_flatten(model.parameters()):
        path = name.rpartition(".")[0]
        module = modules.get(path)
        totals["all"] += array.nbytes
        if isinstance(module, _EMBEDDINGS) and path != head:
            continue
        share = reads.get(path) or 1.0  # a weight can be used without its layer being called
        moved = math.ceil(array.nbytes * share)
        totals["read"] += moved
        if not name.endswith((".scales", ".biases")):
            packing = 32 / getattr(module, "bits", 32) if array.dtype == mx.uint32 else 1
            totals["weights"] += math.ceil(array.size * packing * share)
        if path == head:
            totals["head"] += moved
        if isinstance(module, _ROUTED):
            totals["experts"] += moved
    return Traffic(
        weight_bytes=totals["read"],
        weights=totals["weights"],
        head_bytes=totals["head"],
        expert_bytes=totals["experts"],
        parameter_bytes=totals["all"],
        caches=_cache_layers(entries, kv_bits),
        context_window=context_window,
        source=source,
    )


@contextmanager
def _counting(modules: dict[str, nn.Module]) -> Iterator[dict[str, float]]:
    """How often each module is called meanwhile, by its path; routed experts count by the share that is chosen."""
    reads: dict[str, float] = {}
    plain = {path: type(module) for path, module in modules.items() if path}

    def counted(path: str, kind: type[nn.Module]) -> type[nn.Module]:
        original: Callable[..., Any] = kind.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            share = 1.0
            if isinstance(module, _ROUTED):
                indices = args[1] if len(args) > 1 else kwargs["indices"]
                share = min(indices.size / module.weight.shape[0], 1.0)
            reads[path] = reads.get(path, 0.0) + share
            return original(module, *args, **kwargs)

        return type(kind.__name__, (kind,), {"__call__": call})

    try:
        for path, kind in plain.items():
            modules[path].__class__ = counted(path, kind)
        yield reads
    finally:
        for path, kind in plain.items():
            modules[path].__class__ = kind


def _head(modules: dict[str, nn.Module], vocabulary: int) -> str | None:
    """The path of the output head: as high as the vocabulary, outside the layers; else the embedding used as one."""
    tall = [
        path
        for path, module in modules.items()
        if "weight" in module and module.weight.ndim == 2 and module.weight.shape[0] == vocabulary
        if not any(part.isdigit() for part in path.split("."))
    ]
    own = [path for path in tall if not isinstance(modules[path], _EMBEDDINGS)]
    return next(iter(own or tall), None)


def _cache_layers(entries: list[Any], kv_bits: int | None) -> tuple[CacheLayers, ...]:
    kinds: dict[tuple[Kind, int | None], list[int]] = {}
    for entry in leaves(entries):
        kind, window = _kind(entry)
        if kv_bits and type(entry) is mlx_cache.KVCache and not entry.empty():
            entry = KVBits(kv_bits).quantized(entry)
        row, state = (0, _bytes(entry.cache)) if kind == "recurrent" else (_row_bytes(entry), 0)
        if row or state:
            sums = kinds.setdefault((kind, window), [0, 0, 0])
            sums[0] += 1
            sums[1] += row
            sums[2] += state
    return tuple(
        CacheLayers(kind, layers, row_bytes=row, window_tokens=window, state_bytes=state)
        for (kind, window), (layers, row, state) in kinds.items()
    )


def _kind(entry: Any) -> tuple[Kind, int | None]:
    window = getattr(entry, "max_size", None) or getattr(entry, "chunk_size", None)
    if isinstance(entry, mlx_cache.ArraysCache):
        return "recurrent", None
    if window:
        return "window", int(window)
    if not hasattr(entry, "keys"):
        raise ValueError(f"its {type(entry).__name__} is a cache of an unknown kind")
    shapes = [array.shape for array in (entry.keys, entry.values) if array is not None]
    # Multi-head latent attention keeps one compressed row for all heads, of another width than its positions.
    latent = len(shapes) == 2 and shapes[0][1] == shapes[1][1] == 1 and shapes[0][-1] != shapes[1][-1]
    return ("latent" if latent else "full"), None


def _row_bytes(entry: Any) -> int:
    arrays = [array for _, array in tree_flatten([entry.keys, entry.values]) if isinstance(array, mx.array)]
    return sum(array.nbytes // array.shape[2] for array in arrays)


def _bytes(state: Any) -> int:
    return sum(array.nbytes for _, array in tree_flatten(state) if isinstance(array, mx.array))
