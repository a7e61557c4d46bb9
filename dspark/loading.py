"""Loading a pair step by step, each step measured: what `mlx-dspark load` shows."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import mlx.core as mx

from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import Engine, Loaded, LoadOptions
from dspark.hub import demo, registry
from dspark.hub.downloading import Heard, unheard
from dspark.hub.plan import Part, plan
from dspark.hub.resolving import resolve
from dspark.machine import describe
from dspark.machine.precision import fastest_precision
from dspark.machine.room import Room, room
from dspark.pair import Phase, check_profile
from dspark.targets.footprint import Footprint

StepName = Literal["resolve", "download", "load", "probe", "warm up"]
WARMUP_PROMPT = "Say hello."
WARMUP_TOKENS = 8
_STEP_OF: dict[Phase, StepName] = {"loading": "load", "probing": "probe"}


@dataclass(frozen=True)
class Step:
    """`bytes` were fetched, or held by MLX in addition; `peak_bytes` is the most that MLX held meanwhile."""

    name: StepName
    seconds: float
    bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class LoadReport:
    """A measured load. `resident_bytes` is what MLX holds after it, `room` what the machine has after it."""

    loaded: Loaded
    parts: tuple[Part, ...]
    steps: tuple[Step, ...]
    resident_bytes: int
    peak_bytes: int
    room: Room
    footprint: Footprint

    @property
    def cache_room_bytes(self) -> int | None:
        """What is left for caches: under the limit, and free now."""
        room = self.room
        left = None if room.limit_bytes is None else max(room.limit_bytes - self.resident_bytes, 0)
        return min((size for size in (left, room.free_bytes) if size is not None), default=None)

    @property
    def fitting_tokens(self) -> int | None:
        """The longest context, up to the model's window, whose cache goes into that; None where it is unknown."""
        size = self.cache_room_bytes
        return None if size is None else self.footprint.cache.longest(size, self.loaded.context_window)

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        cache, window = self.footprint.cache, self.loaded.context_window
        return {
            "pair": asdict(self.loaded),
            "parts": [part_dict(part) for part in self.parts],
            "steps": [asdict(step) for step in self.steps],
            "memory": {
                "resident_bytes": self.resident_bytes,
                "peak_bytes": self.peak_bytes,
                "limit_bytes": self.room.limit_bytes,
                "free_bytes": self.room.free_bytes,
                "binds": self.room.binds,
            },
            "bytes_per_token": self.footprint.bytes_per_token,
            "context": {
                "window_tokens": window,
                "window_cache_bytes": cache.at(window),
                "fitting_tokens": self.fitting_tokens,
                "kv_bytes_per_token": cache.per_token,
                "rings": [{"bytes_per_token": each, "window_tokens": window} for each, window in cache.rings],
                "fixed_bytes": cache.fixed,
            },
        }


def part_dict(part: Part) -> dict[str, Any]:
    """A part of the plan, ready for JSON."""
    return asdict(part) | {"folder": str(part.folder) if part.folder else None}


def settled(options: LoadOptions) -> tuple[LoadOptions, str | None]:
    """`options` with the demo pair's precision chosen, and why it was (None: there was nothing to choose)."""
    if options.model != registry.DEMO.id or options.precision is not None:
        return options, None
    precision, why = fastest_precision()
    return replace(options, precision=precision), why


def parts_of(options: LoadOptions) -> tuple[Part, ...]:
    """What loading `options` takes, see `dspark.hub.plan`."""
    drafter = "none" if options.mode in ("baseline", "lookup") else options.drafter
    return plan(
        options.model,
        drafter,
        precision=options.precision or "fp32",
        trust_remote_code=options.trust_remote_code,
    )


def load(
    engine: Engine,
    options: LoadOptions,
    speculation: SpeculationOptions,
    *,
    warmup: bool = True,
    entering: Callable[[StepName], None] = lambda step: None,
) -> LoadReport:
    """Resolve, download, load, probe and warm up; `entering` hears of each step as it begins.

    Raises:
        As `Engine.load` and `Engine.generate`.
    """
    watch = _Watch(entering)
    check_profile(options)
    with watch.step("resolve"):
        options, _ = settled(options)
        parts = parts_of(options)
    with watch.step("download"):
        for part in parts:
            if part.fetch_bytes:
                fetch(part, options)
    watch.fetched(sum(part.fetch_bytes or 0 for part in parts))
    loaded = engine.load(options, entering=watch.enter)
    watch.leave()
    if warmup:
        with watch.step("warm up"):
            warm_up(engine, speculation)
    mx.clear_cache()
    return LoadReport(
        loaded,
        parts,
        watch.steps,
        resident_bytes=mx.get_active_memory(),
        peak_bytes=watch.peak_bytes,
        room=room(describe()),
        footprint=engine.footprint(),
    )


def fetch(part: Part, options: LoadOptions, heard: Heard = unheard) -> None:
    """Download a part of the plan; `heard` hears of its bytes.

    Raises:
        As `dspark.hub.resolving.resolve`, and whatever `heard` raises.
    """
    if part.name == registry.DEMO.id:
        demo.target(options.precision or "fp32", heard)
    else:
        kind: Literal["model", "drafter"] = "model" if part.role == "target" else "drafter"
        resolve(part.name, kind=kind, trust_remote_code=options.trust_remote_code, heard=heard)


def warm_up(engine: Engine, speculation: SpeculationOptions, cancelled: Callable[[], bool] = lambda: False) -> None:
    """A short generation, so that the first real one finds everything compiled and paged in. Raises as it does."""
    prompt = engine.encode_chat(WARMUP_PROMPT)
    request = Request(prompt, WARMUP_TOKENS, speculation=speculation, cancelled=cancelled, reuse=False)
    for _ in engine.generate(request):
        pass


class _Watch:
    """Seconds and MLX's memory of each step, in the order in which they first began."""

    def __init__(self, entering: Callable[[StepName], None]) -> None:
        self._entering = entering
        self._steps: dict[StepName, Step] = {}
        self._running: tuple[StepName, float, int] | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self._steps.values())

    @property
    def peak_bytes(self) -> int:
        return max(step.peak_bytes or 0 for step in self.steps)

    @contextmanager
    def step(self, name: StepName) -> Iterator[None]:
        self.begin(name)
        yield
        self.leave()

    def enter(self, phase: Phase) -> None:
        self.begin(_STEP_OF[phase])

    def begin(self, name: StepName) -> None:
        self.leave()
        if name not in self._steps:
            self._entering(name)
        mx.reset_peak_memory()
        self._running = (name, time.perf_counter(), mx.get_active_memory())

    def leave(self) -> None:
        if self._running is None:
            return
        name, since, before = self._running
        self._running = None
        old = self._steps.get(name, Step(name, 0.0, 0, 0))
        self._steps[name] = Step(
            name,
            old.seconds + time.perf_counter() - since,
            (old.bytes or 0) + max(mx.get_active_memory() - before, 0),
            max(old.peak_bytes or 0, mx.get_peak_memory()),
        )

    def fetched(self, size_bytes: int) -> None:
        self._steps["download"] = replace(self._steps["download"], bytes=size_bytes)
