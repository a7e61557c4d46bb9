"""The engine: one façade for every command and the server. It holds at most one pair and runs one generation at a time.

All calls must come from one thread, the one that touches MLX.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from dspark.arrays import floats, integers
from dspark.decoding.events import Event
from dspark.decoding.lookup import MAX_DRAFT_TOKENS
from dspark.decoding.loop import PREFILL_CHUNK_TOKENS, Decoding
from dspark.decoding.request import Mode, Request, Sampling, Speculation, SpeculationOptions
from dspark.decoding.sampling import Chooser
from dspark.decoding.verdict import TopTwo
from dspark.drafters.block import BlockDrafter
from dspark.drafters.conventions import open_drafter
from dspark.drafters.loading import load_drafter
from dspark.errors import (
    DrafterFormatError,
    EngineBusy,
    ModelNotFound,
    NetworkError,
    NotLoaded,
    PromptError,
    UsageError,
)
from dspark.hub import demo, registry, shelves
from dspark.hub.resolving import resolve
from dspark.hub.vetting import trusted
from dspark.machine.precision import Precision, fastest_precision
from dspark.targets.caches import KVBits
from dspark.targets.probe import probe_kv_bits, probe_taps, rollback_refusal
from dspark.targets.target import Target
from dspark.tuning.costs import CostModel
from dspark.tuning.measure import measure_costs
from dspark.tuning.pilot import AutoPilot, FixedPilot, Pilot, PlainPilot

NO_DRAFTER = "none"


@dataclass(frozen=True)
class LoadOptions:
    """What to load: `drafter` None takes the registry's, `none` none; `precision` belongs to the demo pair.

    `kv_bits` (4 or 8) quantizes the keys and values of full-attention layers; None keeps them as they are computed.
    """

    model: str = "demo"
    drafter: str | None = None
    mode: Mode = "auto"
    precision: Precision | None = None
    trust_remote_code: bool = False
    kv_bits: int | None = None


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


@dataclass(frozen=True)
class _Pair:
    target: Target
    drafter: BlockDrafter | None
    loaded: Loaded


class Engine:
    """Loads a pair, generates with it, and measures it."""

    def __init__(self) -> None:
        self._pair: _Pair | None = None
        self._costs: CostModel | None = None
        self._generating = False

    @property
    def loaded(self) -> Loaded | None:
        """What is loaded, or None."""
        return self._pair.loaded if self._pair else None

    def load(self, options: LoadOptions) -> Loaded:
        """Find, fetch, vet and load a pair, in place of the one before.

        Raises:
            ModelNotFound, NetworkError, StorageError: it cannot be had.
            CheckpointError, PairingError: it cannot be used.
            UsageError: options that contradict each other.
        """
        self.unload()
        started = time.perf_counter()
        if options.precision is not None and options.model != registry.DEMO.id:
            raise UsageError(
                "--precision belongs to the demo pair; choose another quantization by its model id instead"
            )
        if options.kv_bits not in (None, 4, 8):
            raise UsageError(f"--kv-bits {options.kv_bits} is not possible; give 4 or 8, or leave it out")
        notes: list[str] = []
        folder = self._find_target(options, notes)
        target = Target.load(
            folder,
            trust_remote_code=trusted(options.trust_remote_code),
            kv_bits=KVBits(options.kv_bits) if options.kv_bits else None,
        )
        if target.kv_bits is not None:
            probe_kv_bits(target)
        known = registry.find(options.model, target.config)
        refusal = rollback_refusal(target)
        if refusal is not None:
            notes.append(f"runs plain: {refusal}")
        drafter, drafter_name = None, None
        if refusal is None and options.drafter != NO_DRAFTER and options.mode in ("auto", "dspark", "dflash"):
            drafter, drafter_name = self._load_drafter(options, known, target, notes)
        if drafter is not None:
            probe_taps(target, drafter.taps, target.hidden_size)
        elif options.drafter not in (None, NO_DRAFTER):
            raise UsageError(
                f"--drafter was given, but this model {refusal or 'was asked to run without one'}; leave it out"
            )
        modes: tuple[Mode, ...] = ("baseline",)
        if refusal is None:
            modes += ("lookup",)
        if drafter is not None:
            modes += (drafter.config.kind,)
        if options.mode not in ("auto", *modes):
            raise UsageError(f"mode {options.mode} is not possible for {options.model}: it supports {', '.join(modes)}")
        mode = modes[-1] if options.mode == "auto" else options.mode
        loaded = Loaded(
            model=options.model,
            target=str(folder),
            drafter=drafter_name,
            family=target.family,
            dtype=str(target.embedding(mx.array([[0]])).dtype).removeprefix("mlx.core."),
            quantization=_bits(target.config),
            modes=modes,
            default=_default(mode, lookup=known.lookup if known else True),
            block=drafter.block if drafter else 0,
            context_window=target.context_window,
            vocabulary=target.vocabulary,
            eos=tuple(sorted(target.eos)),
            load_seconds=time.perf_counter() - started,
            resident_bytes=_parameter_bytes(target.model) + (drafter.parameter_bytes if drafter else 0),
            notes=tuple(notes),
        )
        self._pair = _Pair(target, drafter, loaded)
        return loaded

    def _find_target(self, options: LoadOptions, notes: list[str]) -> Path:
        if options.model != registry.DEMO.id:
            return resolve(options.model, kind="model", trust_remote_code=options.trust_remote_code)
        if options.precision is not None:
            return demo.target(options.precision)
        precision, why = fastest_precision()
        notes.append(why)
        return demo.target(precision)

    def _load_drafter(
        self, options: LoadOptions, known: registry.Pair | None, target: Target, notes: list[str]
    ) -> tuple[BlockDrafter | None, str | None]:
        name = options.drafter or (known.drafter if known else None)
        if name is None:
            notes.append("no drafter is known for this model; lookup and baseline remain (--drafter takes one)")
            return None, None
        try:
            if name == registry.DEMO.id:
                return load_drafter(demo.head(), target), name
            path = Path(name).expanduser()
            if path.suffix.lower() != ".gguf":
                path = resolve(name, kind="drafter", trust_remote_code=options.trust_remote_code)
            opened = open_drafter(path, target, memory=shelves.home() / "drafters.json")
            if opened.note is not None:
                notes.append(opened.note)
            return opened.drafter, name
        except (DrafterFormatError, ModelNotFound, NetworkError) as error:
            if options.drafter is not None or options.mode != "auto":
                raise
            notes.append(f"runs without its drafter {name}: {error}")
            return None, None

    def unload(self) -> int:
        """Free the pair; returns the bytes that came back.

        Raises:
            EngineBusy: a generation is running.
        """
        if self._generating:
            raise EngineBusy("a generation is running; cancel it before loading or unloading a model")
        before = mx.get_active_memory()
        self._pair, self._costs = None, None
        mx.clear_cache()
        return int(before - mx.get_active_memory())

    def resolve(self, options: SpeculationOptions) -> Speculation:
        """What `options` come to with the loaded pair.

        Raises:
            NotLoaded: nothing is loaded.
            UsageError: the pair cannot do it; the message names the limit.
        """
        loaded = self._require().loaded
        mode = loaded.default.mode if options.mode == "auto" else options.mode
        if mode not in loaded.modes:
            raise UsageError(f"mode {mode} is not possible for {loaded.model}: it supports {', '.join(loaded.modes)}")
        if mode == "baseline":
            return Speculation("baseline", cap=0, lookup=False, confidence=0.0)
        most = MAX_DRAFT_TOKENS if mode == "lookup" else loaded.block
        cap = "auto" if options.cap is None else options.cap
        if cap != "auto" and not 1 <= cap <= most:
            what = "lookup proposes at most" if mode == "lookup" else f"the drafter {loaded.drafter} was trained for"
            raise UsageError(f"cap {cap} is out of range: {what} {most} tokens a round, so give 1 to {most} or auto")
        if mode == "lookup":
            return Speculation("lookup", cap=cap, lookup=True, confidence=0.0)
        default_lookup = loaded.default.lookup
        confidence = options.confidence or 0.0
        drafter = self._require().drafter
        if confidence > 0 and (drafter is None or drafter.config.confidence is None):
            raise UsageError(f"the drafter {loaded.drafter} has no confidence head; leave the confidence threshold out")
        return Speculation(mode, cap, default_lookup if options.lookup is None else options.lookup, confidence)

    def generate(self, request: Request) -> Iterator[Event]:
        """Decode a prompt; see `dspark.decoding.events` for the order of events. Closing the iterator stops it.

        Raises:
            NotLoaded, EngineBusy, UsageError, PromptError: at once, before anything runs.
            DecodingError: from the iterator.
        """
        return self._run(self.start(request))

    def start(self, request: Request) -> Decoding:
        """A decoding that has not begun, for callers that want its state (`Decoding.sequence`) beside its events."""
        pair = self._require()
        if self._generating:
            raise EngineBusy("a generation is already running; wait for it or cancel it")
        _check(request, pair.loaded)
        request.sampling.check(pair.loaded.vocabulary)
        speculation = self.resolve(request.speculation)
        drafter = pair.drafter if speculation.mode not in ("baseline", "lookup") else None
        return Decoding(pair.target, drafter, self._pilot(speculation, drafter), request, lookup=speculation.lookup)

    def _run(self, decoding: Decoding) -> Iterator[Event]:
        if self._generating:
            raise EngineBusy("a generation is already running; wait for it or cancel it")
        self._generating = True
        try:
            yield from decoding.events()
        finally:
            self._generating = False

    def _pilot(self, speculation: Speculation, drafter: BlockDrafter | None) -> Pilot:
        if speculation.mode == "baseline":
            return PlainPilot()
        if speculation.cap != "auto":
            return FixedPilot(
                speculation.cap,
                drafter=drafter is not None,
                lookup=speculation.lookup,
                confidence=speculation.confidence,
            )
        return AutoPilot(
            self.costs(),
            max_cap=MAX_DRAFT_TOKENS,
            block=drafter.block if drafter else 0,
            lookup=speculation.lookup,
            confidence=speculation.confidence,
        )

    def costs(self) -> CostModel:
        """What rounds cost on this machine, measured at the first call after a load (some seconds)."""
        if self._costs is None:
            pair = self._require()
            self._costs = measure_costs(pair.target, pair.drafter)
        return self._costs

    def encode_chat(self, prompt: str) -> list[int]:
        """Token ids of one user turn through the model's chat template.

        Raises:
            PromptError: nothing remains after encoding.
        """
        return self._require().target.encode_chat(prompt)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids."""
        return str(self._require().target.tokenizer.decode(list(tokens)))

    def top_two(self, context: Sequence[int], sampling: Sampling = Sampling(), place: int = 0) -> TopTwo:
        """The two best tokens after `context`, from the one-token step that plain decoding would take there.

        With sampling, the two that come out best at `place` of the answer, noise included; the gap is in logits.
        """
        target = self._require().target
        target.tap(())
        cache = target.new_cache()
        tokens = mx.array([list(context)], dtype=mx.int32)
        for at in range(0, len(context) - 1, PREFILL_CHUNK_TOKENS):
            target.forward(tokens[:, at : min(at + PREFILL_CHUNK_TOKENS, len(context) - 1)], cache)
            mx.eval(cache.arrays)
        logits, _ = target.forward(tokens[:, -1:], cache)
        chooser = Chooser(sampling, target.vocabulary)
        scores = chooser.scores(chooser.process(logits[0], context), chooser.noise(place, 1))[0]
        order = mx.argsort(scores)[-2:]
        (second, first), (low, high) = integers(order), floats(scores[order])
        peak = floats(mx.max(mx.abs(logits[0, -1]))[None])[0]
        return TopTwo(first=first, second=second, gap=(high - low) * (sampling.temperature or 1.0), logit=peak)

    def _require(self) -> _Pair:
        if self._pair is None:
            raise NotLoaded("no model is loaded; load one first")
        return self._pair


def _check(request: Request, loaded: Loaded) -> None:
    if request.max_tokens < 1:
        raise UsageError(f"max_tokens must be at least 1, not {request.max_tokens}")
    length = len(request.prompt)
    if length == 0:
        raise PromptError("the prompt is empty; give at least one token")
    if length >= loaded.context_window:
        raise PromptError(f"prompt is too long: {length} tokens > {loaded.context_window - 1} maximum; shorten it")
    if not all(0 <= token < loaded.vocabulary for token in request.prompt):
        raise PromptError(
            f"the prompt holds ids outside the vocabulary of {loaded.vocabulary}; encode it with this model's tokenizer"
        )


def _default(mode: Mode, *, lookup: bool) -> Speculation:
    if mode == "baseline":
        return Speculation("baseline", cap=0, lookup=False, confidence=0.0)
    return Speculation(mode, cap="auto", lookup=lookup or mode == "lookup", confidence=0.0)


def _bits(config: dict[str, Any]) -> int | None:
    quantization = config.get("quantization")
    return int(quantization["bits"]) if isinstance(quantization, dict) and "bits" in quantization else None


def _parameter_bytes(model: Any) -> int:
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))
