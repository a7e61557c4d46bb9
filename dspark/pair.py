"""A pair: a target, its drafter where there is one, and what they can do together. Loading one is all of this file."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from dspark.prefix.options import PrefixOptions
from dspark.targets.attention import SplitAttention
from dspark.targets.caches import KVBits
from dspark.targets.probe import probe_kv_bits, probe_taps, rollback_refusal
from dspark.targets.target import Target
from dspark.tuning import profiles
from dspark.tuning.key import Key, key_for
from dspark.tuning.pilot import MAX_ROUND_TOKENS
from dspark.tuning.profile import Derived, Profile
from dspark.tuning.profiles import Found
from dspark.tuning.trial import on_metal, split_pays

NO_DRAFTER = "none"
PLUGGED = "plugged in"
NOT_CALIBRATED = Found()


@dataclass(frozen=True)
class LoadOptions:
    """What to load: `drafter` None takes the registry's, `none` none; `precision` belongs to the demo pair.

    `kv_bits` (4 or 8) quantizes the keys and values of full-attention layers; None keeps them as they are computed.
    `drafter_bits` quantizes the drafter's projections (16: not at all; auto: 4 on a GPU, 16 on a CPU, where packed
    weights are slower). `drafter_window` bounds how many tokens back it looks (0: no bound; auto: as it was trained,
    or 4096 tokens). `profile` is a calibration profile to go by (none: none; None: what calibrate left for this pair).
    `sdpa_split` reads wide verify passes in chunks where a trial finds that faster (None: tried on Metal only).
    `context_window` bounds prompt and answer together (0: what the model was made for). `memory_guard` switches the
    engine's guard (None: as it is).
    `prefix` says how much to remember of the prompts that were read.
    """

    model: str = "demo"
    drafter: str | None = None
    mode: Mode = "auto"
    precision: Precision | None = None
    trust_remote_code: bool = False
    kv_bits: int | None = None
    drafter_bits: Bits = "auto"
    drafter_window: Window = "auto"
    sdpa_split: bool | None = None
    profile: str | None = None
    context_window: int = 0
    memory_guard: bool | None = None
    prefix: PrefixOptions = field(default_factory=PrefixOptions)


@dataclass(frozen=True)
class Loaded:
    """The pair in the engine. `modes` are the concrete modes it supports; `default` is what `auto` stands for.

    `dtype` is the type of its activations, `quantization` the bits of its weights (None: not quantized), `block` the
    drafter's most proposals a round (0 without one). `profile` is the file of the calibration in force. `notes` are
    meant for the user.
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
    sdpa_split: bool = False
    profile: str | None = None


@dataclass(frozen=True)
class Pair:
    """What the engine decodes with. `key` is what a calibration of it belongs to, `calibrated` the one found."""

    target: Target
    drafter: Drafter | None
    loaded: Loaded
    key: Key | None = None
    calibrated: Found = NOT_CALIBRATED
    drafter_path: Path | None = None


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
    check_profile(options)
    entering("loading")
    target, folder = _load_target(options, notes)
    entering("probing")
    _split_attention(target, options.sdpa_split, notes)
    if target.kv_bits is not None:
        probe_kv_bits(target)
    known = registry.find(options.model, target.config)
    refusal = rollback_refusal(target)
    entering("loading")
    found, source = NOT_CALIBRATED, None
    if refusal is not None:
        notes.append(f"runs plain: {refusal}")
    elif options.drafter != NO_DRAFTER and options.mode in ("auto", "dspark", "dflash"):
        source = _find_drafter(options, known, notes)
    key = key_for(folder, source.path if source else None, _switches(options))
    if refusal is None:
        found = profiles.find(options.model, key, options.profile)
        notes += found.notes
    bits = options.drafter_bits
    if bits == "auto" and found.profile is not None:
        bits = found.profile.derived.drafter_bits or bits
    drafter = _load_drafter(source, options, bits, target, notes) if source else None
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
    lookup = known.lookup if known else not _has_experts(target.config)
    default = _default(modes[-1] if options.mode == "auto" else options.mode, lookup=lookup)
    profile = found.profile
    if profile is not None and (drafter is None) != (profile.key.drafter is None):
        profile, found = None, NOT_CALIBRATED  # its drafter could not be loaded
    window = _context_window(options, target, notes)
    if profile is not None and not _possible(profile.derived, drafter):
        notes.append(f"{found.path} asks for what this pair cannot do, so it is not used: run mlx-dspark calibrate")
        profile, found = None, NOT_CALIBRATED
    if profile is not None and options.mode == "auto":
        default = _derived(profile.derived, modes)
    loaded = Loaded(
        model=options.model,
        target=str(folder),
        drafter=source.name if source and drafter else None,
        family=target.family,
        dtype=str(target.dtype).removeprefix("mlx.core."),
        quantization=target.quantized_bits,
        modes=modes,
        default=default,
        block=drafter.block if drafter else 0,
        context_window=window,
        vocabulary=target.vocabulary,
        eos=tuple(sorted(target.eos)),
        load_seconds=time.perf_counter() - started,
        resident_bytes=_parameter_bytes(target.model) + (drafter.parameter_bytes if drafter else 0),
        notes=tuple(notes),
        kv_bits=options.kv_bits,
        drafter_bits=options.drafter_bits,
        drafter_window=options.drafter_window,
        sdpa_split=target.attention is not None,
        profile=str(found.path) if found.path else None,
    )
    return Pair(target, drafter, loaded, key, found, source.path if source and drafter else None)


def check_profile(options: LoadOptions) -> None:
    """Refuse a profile that is not there, before anything is fetched. Raises UsageError."""
    if options.profile not in (None, profiles.NONE):
        profiles.named(options.profile)


def _context_window(options: LoadOptions, target: Target, notes: list[str]) -> int:
    window, asked = target.context_window, options.context_window
    if asked > window:
        notes.append(f"--context-window {asked} is more than this model was made for: {window} tokens are in force")
    elif asked > 0:
        window = asked
    return window


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
        profile=None,
    )
    return Pair(pair.target, drafter, told)


def in_force(pair: Pair, profile: Profile, path: Path | None = None) -> Pair:
    """`pair` going by a calibration of its own; its drafter keeps the precision it was loaded with."""
    told = replace(
        pair.loaded,
        default=_derived(profile.derived, pair.loaded.modes),
        profile=str(path) if path else None,
    )
    return replace(pair, loaded=told, calibrated=Found(profile, path))


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


def _split_attention(target: Target, wanted: bool | None, notes: list[str]) -> None:
    if not (on_metal() if wanted is None else wanted):
        return
    split = SplitAttention(target.model, split_pays)
    if split.reaches:
        target.attention = split
    elif wanted:
        notes.append("--sdpa-split does nothing for this model: its attention is its own")


def drafter_memory() -> Path:
    """Where trials of drafters are remembered."""
    return shelves.home() / "drafters.json"


@dataclass(frozen=True)
class _Source:
    name: str
    path: Path


def _find_drafter(options: LoadOptions, known: registry.Pair | None, notes: list[str]) -> _Source | None:
    name = options.drafter or (known.drafter if known else None)
    if name is None:
        notes.append("no drafter is known for this model; lookup and baseline remain (--drafter takes one)")
        return None
    if name == registry.DEMO.id:
        return _Source(name, demo.head())
    try:
        path = shelves.expanded(name, "--drafter")
        if path.suffix.lower() != ".gguf":
            path = resolve(name, kind="drafter", trust_remote_code=options.trust_remote_code)
    except UsageError:
        raise
    except DSparkError as error:
        _go_without(name, options, error, notes)
        return None
    return _Source(name, path)


def _load_drafter(
    source: _Source, options: LoadOptions, bits: Bits, target: Target, notes: list[str]
) -> BlockDrafter | None:
    try:
        opened = _open(source.path, target, bits, options.drafter_window)
        probe_taps(target, opened.drafter.taps, target.hidden_size)
    except UsageError:
        raise
    except DSparkError as error:
        _go_without(source.name, options, error, notes)
        return None
    except Exception as error:  # whatever broken files make the libraries raise
        raise DrafterFormatError(
            f"{source.name} cannot be read as a drafter ({type(error).__name__}: {error}); fetch it again"
        ) from error
    if opened.note is not None:
        notes.append(opened.note)
    return opened.drafter


def _open(path: Path, target: Target, bits: Bits, window: Window) -> Opened:
    if path == demo.head():  # nothing of it is in doubt
        return Opened(load_drafter(path, target, bits=bits, window=window), None)
    return open_drafter(path, target, bits=bits, window=window, memory=drafter_memory())


def drafter_again(pair: Pair, bits: int) -> BlockDrafter:
    """The pair's own drafter, read once more in another precision. Raises as `load_pair` does."""
    assert pair.drafter_path is not None, "only a drafter that came from files can be read again"
    return _open(pair.drafter_path, pair.target, bits, pair.loaded.drafter_window).drafter


def _go_without(name: str, options: LoadOptions, error: DSparkError, notes: list[str]) -> None:
    """Say so; raise where this very drafter was asked for."""
    if options.drafter is not None or options.mode != "auto":
        raise error
    notes.append(f"runs without its drafter {name}: {error}")


def _switches(options: LoadOptions) -> dict[str, object]:
    """Load options that change what rounds cost or what drafts are worth."""
    switches: dict[str, object] = {
        "kv_bits": options.kv_bits or 0,
        "drafter_bits": options.drafter_bits,
        "drafter_window": options.drafter_window,
    }
    # What it is by itself follows from the rest of the key.
    return switches if options.sdpa_split is None else {**switches, "sdpa_split": options.sdpa_split}


def _possible(derived: Derived, drafter: BlockDrafter | None) -> bool:
    """Whether what a profile has mode auto stand for is within the pair's limits; a file may say anything."""
    most = drafter.block if drafter and derived.mode == "drafter" else MAX_ROUND_TOKENS
    capped = derived.auto_cap == "auto" or derived.auto_cap <= most
    threshold = derived.mode == "drafter" and derived.auto_confidence > 0
    return capped and (not threshold or (drafter is not None and drafter.has_confidence))


def _derived(derived: Derived, modes: tuple[Mode, ...]) -> Speculation:
    """What the profile in force found best for mode auto."""
    if derived.mode == "drafter" and modes[-1] not in ("baseline", "lookup"):
        return Speculation(modes[-1], derived.auto_cap, derived.auto_lookup, derived.auto_confidence)
    if derived.mode == "lookup" and "lookup" in modes:
        return Speculation("lookup", derived.auto_cap, lookup=True, confidence=0.0)
    return _default("baseline", lookup=False)


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
