"""A pair: a target, its drafter where there is one, and what they can do together. Loading one is all of this file."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mlx.utils import tree_flatten

from dspark.decoding.request import Mode, Speculation
from dspark.drafters.block import BlockDrafter
from dspark.drafters.conventions import Opened, open_drafter
from dspark.drafters.drafter import Drafter
from dspark.drafters.loading import Bits, Window, load_drafter
from dspark.errors import DrafterFormatError, DSparkError, UsageError
from dspark.hub import demo, registry, shelves
from dspark.hub.resolving import resolve
from dspark.hub.vetting import trusted
from dspark.machine.precision import Precision, fastest_precision
from dspark.targets.caches import KVBits
from dspark.targets.probe import probe_kv_bits, probe_taps, rollback_refusal
from dspark.targets.target import Target

NO_DRAFTER = "none"
PLUGGED = "plugged in"


@dataclass(frozen=True)
class LoadOptions:
    """What to load: `drafter` None takes the registry's, `none` none; `precision` belongs to the demo pair.

    `kv_bits` (4 or 8) quantizes the keys and values of full-attention layers; None keeps them as they are computed.
    `drafter_bits` quantizes the drafter's projections (16: not at all; auto: 4 on a GPU, 16 on a CPU, where packed
    weights are slower). `drafter_window` bounds how many tokens back it looks (0: no bound; auto: as it was trained,
    or 4096 tokens).
    """

    model: str = "demo"
    drafter: str | None = None
    mode: Mode = "auto"
    precision: Precision | None = None
    trust_remote_code: bool = False
    kv_bits: int | None = None
    drafter_bits: Bits = "auto"
    drafter_window: Window = "auto"


@dataclass(frozen=True)
class Loaded:
    """The pair in the engine. `modes` are the concrete modes it supports; `default` is what `auto` stands for.

    `dtype` is the type of its activations, `quantization` the bits of its weights (None: not quantized), `block` the
    drafter's most proposals a round (0 without one). `notes` are meant for the user.
    """

    model: str
    target: str
    drafter: str | None
    family: str
    dtype: str
    quantization: int | None
    modes: tuple[Mode, ...]
    default: Speculation
    block: int
    context_window: int
    vocabulary: int
    eos: tuple[int, ...]
    load_seconds: float
    resident_bytes: int
    notes: tuple[str, ...]
    kv_bits: int | None = None
    drafter_bits: Bits = "auto"
    drafter_window: Window = "auto"


@dataclass(frozen=True)
class Pair:
    """What the engine decodes with."""

    target: Target
    drafter: Drafter | None
    loaded: Loaded


Phase = Literal["loading", "probing"]


def unheard(phase: Phase) -> None:
    """Nobody wants to know."""


def load_pair(options: LoadOptions, entering: Callable[[Phase], None] = unheard) -> Pair:
    """Find, fetch, vet and load a pair; `entering` is called as each phase begins, some more than once.

    Raises:
        ModelNotFound, NetworkError, StorageError: it cannot be had.
        CheckpointError, PairingError: it cannot be used.
        UsageError: options that contradict each other.
    """
    started = time.perf_counter()
    notes: list[str] = []
    entering("loading")
    target, folder = _load_target(options, notes)
    entering("probing")
    if target.kv_bits is not None:
        probe_kv_bits(target)
    known = registry.find(options.model, target.config)
    refusal = rollback_refusal(target)
    entering("loading")
    drafter, drafter_name = None, None
    if refusal is not None:
        notes.append(f"runs plain: {refusal}")
    elif options.drafter != NO_DRAFTER and options.mode in ("auto", "dspark", "dflash"):
        drafter, drafter_name = _load_drafter(options, known, target, notes)
    if drafter is None and options.drafter not in (None, NO_DRAFTER):
        why = refusal or "was asked to run without one"
        raise UsageError(f"--drafter was given, but this model {why}; leave it out")
    modes: tuple[Mode, ...] = ("baseline",)
    if refusal is None:
        modes += ("lookup",)
    if drafter is not None:
        modes += (drafter.config.kind,)
    if options.mode not in ("auto", *modes):
        raise UsageError(f"mode {options.mode} is not possible for {options.model}: it supports {', '.join(modes)}")
    mode = modes[-1] if options.mode == "auto" else options.mode
    lookup = known.lookup if known else not _has_experts(target.config)
    loaded = Loaded(
        model=options.model,
        target=str(folder),
        drafter=drafter_name,
        family=target.family,
        dtype=str(target.dtype).removeprefix("mlx.core."),
        quantization=target.quantized_bits,
        modes=modes,
        default=_default(mode, lookup=lookup),
        block=drafter.block if drafter else 0,
        context_window=target.context_window,
        vocabulary=target.vocabulary,
        eos=tuple(sorted(target.eos)),
        load_seconds=time.perf_counter() - started,
        resident_bytes=_parameter_bytes(target.model) + (drafter.parameter_bytes if drafter else 0),
        notes=tuple(notes),
        kv_bits=options.kv_bits,
        drafter_bits=options.drafter_bits,
        drafter_window=options.drafter_window,
    )
    return Pair(target, drafter, loaded)


def plugged(pair: Pair, drafter: Drafter) -> Pair:
    """`pair` with a drafter of the caller's own in place of its drafter; its mode is called dspark.

    Raises:
        UsageError: the model runs plain only, or the drafter proposes nothing.
        PairingError: it taps layers that the model does not have.
    """
    loaded = pair.loaded
    if "lookup" not in loaded.modes:
        raise UsageError(f"{loaded.model} cannot be speculated for: {'; '.join(loaded.notes)}")
    if drafter.block < 1:
        raise UsageError(f"a drafter of block {drafter.block} proposes nothing; give it a block of 1 or more")
    if drafter.taps:
        probe_taps(pair.target, drafter.taps, pair.target.hidden_size)
    modes: tuple[Mode, ...] = ("baseline", "lookup", "dspark")
    told = replace(
        loaded,
        drafter=PLUGGED,
        modes=modes,
        default=_default("dspark", lookup=loaded.default.lookup),
        block=drafter.block,
        resident_bytes=_parameter_bytes(pair.target.model),
    )
    return Pair(pair.target, drafter, told)


def _load_target(options: LoadOptions, notes: list[str]) -> tuple[Target, Path]:
    if options.precision is not None and options.model != registry.DEMO.id:
        raise UsageError("--precision belongs to the demo pair; choose another quantization by its model id instead")
    if options.kv_bits not in (None, 4, 8):
        raise UsageError(f"--kv-bits {options.kv_bits} is not possible; give 4 or 8, or leave it out")
    folder = _find_target(options, notes)
    target = Target.load(
        folder,
        trust_remote_code=trusted(options.trust_remote_code),
        kv_bits=KVBits(options.kv_bits) if options.kv_bits else None,
    )
    return target, folder


def _find_target(options: LoadOptions, notes: list[str]) -> Path:
    if options.model != registry.DEMO.id:
        return resolve(options.model, kind="model", trust_remote_code=options.trust_remote_code)
    if options.precision is not None:
        return demo.target(options.precision)
    precision, why = fastest_precision()
    notes.append(why)
    return demo.target(precision)


def drafter_memory() -> Path:
    """Where trials of drafters are remembered."""
    return shelves.home() / "drafters.json"


def _load_drafter(
    options: LoadOptions, known: registry.Pair | None, target: Target, notes: list[str]
) -> tuple[BlockDrafter | None, str | None]:
    name = options.drafter or (known.drafter if known else None)
    if name is None:
        notes.append("no drafter is known for this model; lookup and baseline remain (--drafter takes one)")
        return None, None
    bits, window = options.drafter_bits, options.drafter_window
    try:
        if name == registry.DEMO.id:
            opened = Opened(load_drafter(demo.head(), target, bits=bits, window=window), None)
        else:
            path = shelves.expanded(name, "--drafter")
            if path.suffix.lower() != ".gguf":
                path = resolve(name, kind="drafter", trust_remote_code=options.trust_remote_code)
            opened = open_drafter(path, target, bits=bits, window=window, memory=drafter_memory())
        probe_taps(target, opened.drafter.taps, target.hidden_size)
    except UsageError:
        raise
    except DSparkError as error:
        if options.drafter is not None or options.mode != "auto":
            raise
        notes.append(f"runs without its drafter {name}: {error}")
        return None, None
    except Exception as error:  # whatever broken files make the libraries raise
        raise DrafterFormatError(
            f"{name} cannot be read as a drafter ({type(error).__name__}: {error}); fetch it again"
        ) from error
    if opened.note is not None:
        notes.append(opened.note)
    return opened.drafter, name


def _default(mode: Mode, *, lookup: bool) -> Speculation:
    if mode == "baseline":
        return Speculation("baseline", cap=0, lookup=False, confidence=0.0)
    return Speculation(mode, cap="auto", lookup=lookup or mode == "lookup", confidence=0.0)


def _has_experts(config: dict[str, Any]) -> bool:
    """Mixture-of-experts targets wake more experts with every row they verify, so free guesses are not free."""
    fields = {**config, **(config.get("text_config") or {})}
    return any("expert" in name and isinstance(value, int) and value > 1 for name, value in fields.items())


def _parameter_bytes(model: Any) -> int:
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))
