"""The engine: one façade for every command and the server. It holds at most one pair and runs one generation at a time.

All calls must come from one thread, the one that touches MLX.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dspark.arrays import floats, integers
from dspark.calibrating.agenda import Stage
from dspark.calibrating.calibration import Point, calibrated, recheck
from dspark.calibrating.look import look
from dspark.calibrating.scope import Question, Scope
from dspark.decoding.events import Event, Finished
from dspark.decoding.loop import PREFILL_CHUNK_TOKENS, Decoding
from dspark.decoding.request import Request, Sampling, Speculation, SpeculationOptions
from dspark.decoding.sampling import Chooser
from dspark.decoding.verdict import TopTwo
from dspark.drafters.drafter import Drafter
from dspark.errors import CheckpointError, EngineBusy, NotLoaded, ProfileError, PromptError, UsageError
from dspark.hub import checkpoint
from dspark.machine.ceilings import binding
from dspark.memory.estimate import PrefillCost
from dspark.memory.guard import MemoryGuard, MemoryReport
from dspark.memory.probing import measure_prefill
from dspark.memory.window import window_warning
from dspark.pair import Loaded, LoadOptions, Pair, Phase, in_force, load_pair, plugged, unheard
from dspark.prefix.cache import PrefixCache
from dspark.prefix.opening import open_prefix_cache
from dspark.prefix.options import PrefixOptions
from dspark.targets.footprint import Footprint, bytes_per_token, cache_footprint
from dspark.targets.traffic import Traffic
from dspark.targets.weighing import weigh
from dspark.tuning.acceptance import Prior
from dspark.tuning.costs import CostModel
from dspark.tuning.pilot import MAX_ROUND_TOKENS, Pilot, pilot_for
from dspark.tuning.profile import Profile

__all__ = ["Engine", "LoadOptions", "Loaded"]

# Forwards of fewer rows are recorded for a rollback, and every chunk costs an evaluation and an event.
_LEAST_CHUNK_TOKENS = 128


class Engine:
    """Loads a pair, generates with it, and measures it."""

    def __init__(self, guard: MemoryGuard | None = None) -> None:
        self._pair: Pair | None = None
        self._costs: CostModel | None = None
        self._prefill_cost: PrefillCost | None = None
        self._guard = guard or MemoryGuard()
        self._generating = False
        self._prefix_options = PrefixOptions()
        self._prefix: PrefixCache | None = None
        self._cold = True

    @property
    def loaded(self) -> Loaded | None:
        """What is loaded, or None."""
        return self._pair.loaded if self._pair else None

    @property
    def tokenizer(self) -> TokenizerWrapper:
        """The loaded model's tokenizer, with its chat template and what mlx-lm knows of its markup.

        Raises:
            NotLoaded: nothing is loaded.
        """
        return self._require().target.tokenizer

    def load(self, options: LoadOptions, entering: Callable[[Phase], None] = unheard) -> Loaded:
        """Load a pair in place of the one before; `entering` hears of each phase as it begins.

        Raises:
            As `dspark.pair.load_pair`; EngineBusy while a generation runs. Nothing is loaded afterwards.
        """
        self.unload()
        if options.memory_guard is not None:
            self._guard.enabled = options.memory_guard
        pair = self._warned(load_pair(options, entering))
        prefix = self._open_prefix(pair, options.prefix)
        if options.prefix.enabled and not prefix.enabled:
            notes = (*pair.loaded.notes, f"reads every prompt from its start: {prefix.report().reason}")
            pair = replace(pair, loaded=replace(pair.loaded, notes=notes))
        self._pair, self._cold = pair, True
        return pair.loaded

    def _warned(self, pair: Pair) -> Pair:
        """`pair`, with a note where its context window does not fit this machine."""
        target, loaded = pair.target, pair.loaded
        ceiling, quantized = binding(self._guard.ceilings()), target.kv_bits is not None
        warning = window_warning(cache_footprint(target), loaded.context_window, ceiling, quantized=quantized)
        return pair if warning is None else replace(pair, loaded=replace(loaded, notes=(*loaded.notes, warning)))

    def plug(self, drafter: Drafter) -> Loaded:
        """Give the loaded target a drafter of your own; see `dspark.drafters.drafter.Drafter` for what it must do.

        Raises:
            As `dspark.pair.plugged`; NotLoaded, EngineBusy.
        """
        if self._generating:
            raise EngineBusy("a generation is running; cancel it before changing the drafter")
        pair = plugged(self._require(), drafter)
        self._close_prefix()
        self._open_prefix(pair, self._prefix_options)
        self._pair, self._costs, self._prefill_cost = pair, None, None
        return pair.loaded

    def unload(self) -> int:
        """Free the pair; returns the bytes that came back.

        Raises:
            EngineBusy: a generation is running.
        """
        if self._generating:
            raise EngineBusy("a generation is running; cancel it before loading or unloading a model")
        before = mx.get_active_memory()
        self._close_prefix()
        self._pair, self._costs, self._prefill_cost = None, None, None
        # Layers are made with random weights, which a checkpoint then replaces: until MLX's state is evaluated it keeps
        # a record of every draw, of all models that ever were.
        mx.eval(mx.random.state)
        mx.clear_cache()
        return int(before - mx.get_active_memory())

    def resolve(self, options: SpeculationOptions) -> Speculation:
        """What `options` come to with the loaded pair.

        Raises:
            NotLoaded: nothing is loaded.
            UsageError: the pair cannot do it; the message names the limit.
        """
        pair = self._require()
        loaded, drafter = pair.loaded, pair.drafter
        mode = loaded.default.mode if options.mode == "auto" else options.mode
        if mode not in loaded.modes:
            raise UsageError(f"mode {mode} is not possible for {loaded.model}: it supports {', '.join(loaded.modes)}")
        if mode == "baseline":
            return Speculation("baseline", cap=0, lookup=False, confidence=0.0)
        most = MAX_ROUND_TOKENS if mode == "lookup" else loaded.block
        # What the pair's default says of its cap and threshold holds in its own mode.
        default = (
            loaded.default if loaded.default.mode == mode else Speculation(mode, "auto", loaded.default.lookup, 0.0)
        )
        cap = default.cap if options.cap is None else options.cap
        if cap != "auto" and not 1 <= cap <= most:
            what = "lookup proposes at most" if mode == "lookup" else f"the drafter {loaded.drafter} was trained for"
            raise UsageError(f"cap {cap} is out of range: {what} {most} tokens a round, so give 1 to {most} or auto")
        if mode == "lookup":
            return Speculation("lookup", cap=cap, lookup=True, confidence=0.0)
        confidence = default.confidence if options.confidence is None else options.confidence
        if confidence > 0 and (drafter is None or not drafter.has_confidence):
            raise UsageError(f"the drafter {loaded.drafter} has no confidence head; leave the confidence threshold out")
        return Speculation(mode, cap, default.lookup if options.lookup is None else options.lookup, confidence)

    def generate(self, request: Request) -> Generator[Event]:
        """Decode a prompt; see `dspark.decoding.events` for the order of events. Closing the iterator stops it.

        Raises:
            NotLoaded, EngineBusy, UsageError, PromptError, InsufficientMemory: at once, before anything runs.
            DecodingError: from the iterator.
        """
        return self.run(self.start(request))

    def start(self, request: Request) -> Decoding:
        """A decoding that has not begun, for callers that want its state (`Decoding.sequence`) beside its events."""
        pair = self._require()
        self._require_idle()
        _check(request, pair.loaded)
        request.sampling.check(pair.loaded.vocabulary)
        speculation = self.resolve(request.speculation)
        drafter = pair.drafter if speculation.mode not in ("baseline", "lookup") else None
        length, prefix = len(request.prompt), self._prefix if request.reuse else None
        request = replace(request, max_tokens=min(request.max_tokens, pair.loaded.context_window - length))
        chunk = self._guard.admit(
            self.prefill_cost,
            length,
            self._prefill_chunk,
            cached=lambda: prefix.held(list(request.prompt), drafted=drafter is not None) if prefix is not None else 0,
            answer=request.max_tokens,
        )
        pilot = self._pilot(speculation, drafter)
        return Decoding(
            pair.target,
            drafter,
            pilot,
            request,
            lookup=speculation.lookup,
            prefix=prefix if prefix is not None and prefix.enabled else None,
            chunk=chunk,
        )

    def run(self, decoding: Decoding) -> Generator[Event]:
        """The events of a decoding that `start` made. Raises as `generate` does."""
        self._require_idle()
        self._generating, cold, self._cold = True, self._cold, False
        before = self._guard.strain().swap_used_bytes
        try:
            with closing(decoding.events()) as events:
                for event in events:
                    if isinstance(event, Finished):
                        swapped = _grown(before, self._guard.strain().swap_used_bytes)
                        told = replace(event.statistics, swap_delta_bytes=swapped, cold=cold)
                        event = replace(event, statistics=told)
                    yield event
                    self._guard.border()
        finally:
            self._generating = False

    def prefill_cost(self) -> PrefillCost:
        """What reading a prompt takes, measured at the first call after a load."""
        if self._prefill_cost is None:
            pair = self._require()
            self._prefill_cost = measure_prefill(pair.target, pair.drafter)
        return self._prefill_cost

    def memory(self) -> MemoryReport:
        """Memory as MLX and the guard see it now."""
        return MemoryReport(
            active_bytes=mx.get_active_memory(),
            cache_bytes=mx.get_cache_memory(),
            peak_bytes=mx.get_peak_memory(),
            guard=self._guard.report(),
        )

    def _pilot(self, speculation: Speculation, drafter: Drafter | None) -> Pilot:
        return pilot_for(
            speculation.cap,
            block=drafter.block if drafter else 0,
            lookup=speculation.lookup,
            confidence=speculation.confidence,
            costs=self.costs,
            prior=self._prior(),
        )

    @property
    def prefix_cache(self) -> PrefixCache | None:
        """What is kept of earlier prompts: `report` tells, `shed` gives memory back, `settle` writes to disk."""
        return self._prefix

    def _open_prefix(self, pair: Pair, options: PrefixOptions) -> PrefixCache:
        self._prefix_options = options
        self._prefix = self._guard.holder = _prefix_cache(pair, options)
        return self._prefix

    def _close_prefix(self) -> None:
        if self._prefix is not None:
            self._prefix.close()
        self._prefix = self._guard.holder = None

    @property
    def _prefill_chunk(self) -> int:
        """Prompt tokens a forward. The same in every mode, so that it can move no more than ties between them."""
        profile = self.profile
        measured = profile.derived.prefill_chunk if profile is not None else None
        return PREFILL_CHUNK_TOKENS if measured is None else max(measured, _LEAST_CHUNK_TOKENS)

    def costs(self) -> CostModel:
        """What rounds cost on this machine: as calibrated, else measured at the first call after a load (seconds)."""
        if self._costs is None:
            pair = self._require()
            profile = pair.calibrated.profile
            self._costs = profile.costs() if profile else look(pair.target, pair.drafter)
        return self._costs

    def _prior(self) -> Prior:
        found = self._require().calibrated
        profile = found.profile or found.prior
        return profile.prior() if profile else Prior()

    @property
    def profile(self) -> Profile | None:
        """The calibration in force for the loaded pair, or None."""
        return self._pair.calibrated.profile if self._pair else None

    def calibrate(
        self,
        questions: Sequence[Question],
        scope: Scope = Scope(),
        report: Callable[[Stage], None] = lambda stage: None,
    ) -> Profile:
        """Calibrate the loaded pair; the profile is in force from now on, and written nowhere.

        Raises:
            NotLoaded, EngineBusy; UsageError for a plugged-in drafter.
            DecodingError: as decoding would.
        """
        pair = self._require()
        self._require_idle()
        self._generating = True
        try:
            profile = calibrated(pair, questions, scope, report)
        finally:
            self._generating = False
        self._pair, self._costs = in_force(pair, profile), None
        return profile

    def traffic(self) -> Traffic | None:
        """What a decoded token of the loaded target moves through memory; None where it cannot be told."""
        try:
            return weigh(self._require().target)
        except CheckpointError:
            return None

    def footprint(self) -> Footprint:
        """What the loaded target reads and keeps a token."""
        target = self._require().target
        return Footprint(bytes_per_token(target), cache_footprint(target))

    def recheck(self) -> list[Point]:
        """The calibration in force against a few points measured now.

        Raises:
            NotLoaded, EngineBusy; ProfileError: there is none.
        """
        pair, profile = self._require(), self.profile
        self._require_idle()
        if profile is None:
            raise ProfileError(f"{pair.loaded.model} is not calibrated on this machine: run mlx-dspark calibrate")
        return recheck(pair, profile)

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
        chunk = self._prefill_chunk
        for at in range(0, len(context) - 1, chunk):
            target.forward(tokens[:, at : min(at + chunk, len(context) - 1)], cache)
            mx.eval(cache.arrays)
        logits, _ = target.forward(tokens[:, -1:], cache)
        chooser = Chooser(sampling, target.vocabulary)
        scores = chooser.scores(chooser.process(logits[0], context), chooser.noise(place, 1))[0]
        order = mx.argsort(scores)[-2:]
        (second, first), (low, high) = integers(order), floats(scores[order])
        peak = floats(mx.max(mx.abs(logits[0, -1]))[None])[0]
        return TopTwo(first=first, second=second, gap=(high - low) * (sampling.temperature or 1.0), logit=peak)

    def _require_idle(self) -> None:
        if self._generating:
            raise EngineBusy("a generation is already running; wait for it or cancel it")

    def _require(self) -> Pair:
        if self._pair is None:
            raise NotLoaded("no model is loaded; load one first")
        return self._pair


def _prefix_cache(pair: Pair, options: PrefixOptions) -> PrefixCache:
    refusal = None if "lookup" in pair.loaded.modes else "this model's cache cannot be taken back exactly"
    identity: dict[str, object] | None = None
    if options.folder is not None and pair.key is not None:
        key = pair.key
        identity = {
            "target": checkpoint.edition(Path(pair.loaded.target)),
            "drafter": checkpoint.edition(pair.drafter_path) if pair.drafter_path is not None else None,
            "mlx": key.mlx,
            "mlx_lm": key.mlx_lm,
            "device": key.device,
            "switches": [list(switch) for switch in key.switches],
        }
    return open_prefix_cache(options, pair.target, pair.drafter, identity, refusal)


def _grown(before: int | None, after: int | None) -> int | None:
    """None where a reading is missing, or swap was given back meanwhile: then this request's share cannot be told."""
    return None if before is None or after is None or after < before else after - before


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
