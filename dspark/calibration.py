"""Calibrating a loaded pair: measure its curves, record what its drafts are worth, and derive the settings that win.

Everything is measured here, in this process, on this machine; only the arithmetic is `dspark.tuning`'s.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from dspark.decoding.lookup import LookupIndex
from dspark.drafters.along import Tried, drafts_along, greedy_answers
from dspark.drafters.drafter import Drafter
from dspark.drafters.loading import UNQUANTIZED, default_bits
from dspark.errors import UsageError
from dspark.machine import Conditions, Watch, stamp
from dspark.pair import Pair, drafter_again
from dspark.targets.target import Target
from dspark.tuning.acceptance import Prior, prior_of
from dspark.tuning.costs import interpolate
from dspark.tuning.curves import Curves, Level, Prefill
from dspark.tuning.decision import Decision, Evidence, decide
from dspark.tuning.measure import SHALLOW_TOKENS, Bench, measure_prefill
from dspark.tuning.profile import Measured, Profile, acceptance, curve_table, derived, profile_key
from dspark.tuning.timing import Stopwatch
from dspark.tuning.traces import Place, Trace

DEEP_WIDTHS = (1, 2, 4, 8)
QUICK_WIDTHS = (1, 2, 3, 4, 6, 8)
WIDE = (16, 32)
# Another precision of the drafter must win by this to be worth another load.
_BETTER = 1.02
# And it can only win where its drafts take clearly less time.
_CHEAPER = 0.9
# A first point that has become this much slower by the end tells of heat, or of another program.
MOST_DRIFT = 0.07
MEASURED = "measured by calibrate"
# A point that has moved by more than this says that a profile no longer holds.
MOST_OFF = 0.15


@dataclass(frozen=True)
class Scope:
    """How much to measure.

    A table of timings takes about `table_s` and at least `repeats` observations of each; each chunk size of a prompt
    takes `prefill_s`. `answer_tokens` are recorded of each of `answers_per_class` prompts of a class. `quick` leaves
    out the widest forwards, the chunk sizes and the other precision of the drafter.
    """

    depths: tuple[int, ...] = (1024, 4096)
    table_s: float = 1.6
    repeats: int = 5
    prefill_s: float = 0.8
    answers_per_class: int = 2
    answer_tokens: int = 48
    quick: bool = False

    @classmethod
    def brief(cls) -> "Scope":
        """About a third of the time: no depths, one short answer a class."""
        return cls(depths=(), table_s=0.5, repeats=3, answers_per_class=1, answer_tokens=32, quick=True)


@dataclass(frozen=True)
class Question:
    """A prompt as token ids, and its class."""

    klass: str
    tokens: Sequence[int]


@dataclass(frozen=True)
class Stage:
    """Where a calibration is: `share` of the time it will take is over, `left_s` remain by what was measured so far."""

    name: str
    share: float
    left_s: float


@dataclass(frozen=True)
class Calibration:
    """What a calibration found. `drafter_bits` is the precision that wins, None where only one was tried."""

    curves: Curves
    traces: tuple[Trace, ...]
    prior: Prior
    decision: Decision
    drafter_bits: int | None
    conditions: Conditions
    seconds: float

    @property
    def disturbances(self) -> tuple[str, ...]:
        """What spoiled it, a sentence each; empty for a clean one."""
        found = list(self.conditions.disturbances())
        if self.curves.drift is not None and abs(self.curves.drift) > MOST_DRIFT:
            found.append(
                f"one row cost {self.curves.drift:+.0%} at the end against the start: the machine was heating up, "
                "or busy; let it rest and calibrate again"
            )
        return tuple(found)


class Agenda:
    """Keeps the time of a calibration: what is planned, what is under way, what is left."""

    def __init__(self, report: Callable[[Stage], None], planned: dict[str, float]) -> None:
        self._report = report
        self._planned = planned
        self._done_s = 0.0
        self._name = ""
        self._started = time.perf_counter()

    def plan(self, name: str, seconds: float) -> None:
        """Put a better figure in place of an estimate."""
        self._planned[name] = seconds

    def begin(self, name: str) -> None:
        """Go on to the next stage."""
        self.close()
        self._name, self._started = name, time.perf_counter()
        self.tick()

    def close(self) -> None:
        """The stage under way is over."""
        if self._name:
            self._done_s += time.perf_counter() - self._started
            del self._planned[self._name]
            self._name = ""

    def tick(self) -> None:
        """Report."""
        spent = time.perf_counter() - self._started
        left = max(self._planned[self._name] - spent, 0.0) + sum(
            seconds for name, seconds in self._planned.items() if name != self._name
        )
        done = self._done_s + spent
        self._report(Stage(self._name, done / max(done + left, 1e-9), left))


def calibrated(
    pair: Pair, questions: Sequence[Question], scope: Scope, report: Callable[[Stage], None] = lambda stage: None
) -> Profile:
    """A profile of `pair`, measured now.

    Raises:
        UsageError: its drafter was plugged in, so that no later load could know it again.
        DecodingError: as decoding would.
    """
    if pair.key is None:
        raise UsageError("a plugged-in drafter cannot be calibrated: no profile could be found for it again")
    loaded, bits = pair.loaded, None
    other = None
    if pair.drafter is not None and loaded.drafter_bits == "auto":
        bits = default_bits()
        rival = 4 if bits == UNQUANTIZED else UNQUANTIZED
        other = (rival, lambda: drafter_again(pair, rival))
    subject = Subject(pair.target, pair.drafter, "lookup" in loaded.modes, bits, other)
    found = calibrate(subject, questions, scope, report)
    stamped = stamp()
    return Profile(
        key=profile_key(pair.key),
        measured=Measured(
            model=loaded.model,
            drafter=loaded.drafter,
            dtype=loaded.dtype if loaded.quantization is None else f"{loaded.quantization} bits",
            date=stamped["date"],
            seconds=found.seconds,
            quick=scope.quick,
            mlx_dspark=stamped["mlx_dspark"],
            git=stamped["git"],
            disturbances=list(found.disturbances),
        ),
        curves=curve_table(found.curves),
        acceptance=acceptance(found.prior),
        derived=derived(found.decision, found.drafter_bits, _chunk(found.curves.prefill)),
    )


@dataclass(frozen=True)
class Point:
    """One cost as it is now and as a profile has it, in milliseconds."""

    name: str
    now_ms: float
    then_ms: float

    @property
    def off(self) -> float:
        """Relative change."""
        return self.now_ms / self.then_ms - 1.0


def recheck(pair: Pair, profile: Profile) -> list[Point]:
    """A plain step, a full verification and a full draft, measured now against `profile`."""
    drafter, costs = pair.drafter, profile.costs()
    block = drafter.block if drafter else 7
    level = Bench(pair.target, drafter, Stopwatch(1.0)).level((1, block + 1), [block] if drafter else [])
    points = [
        Point("one row" if width == 1 else f"{width} rows", timing.ms, costs.verify_ms(width))
        for width, timing in level.verify.items()
    ]
    return points + [Point(f"a draft of {cap}", timing.ms, costs.draft_ms(cap)) for cap, timing in level.draft.items()]


@dataclass(frozen=True)
class Subject:
    """What is calibrated. `other` is the same drafter in another precision, as (bits, how to load it)."""

    target: Target
    drafter: Drafter | None
    lookup: bool
    drafter_bits: int | None = None
    other: tuple[int, Callable[[], Drafter]] | None = None


def calibrate(
    subject: Subject, questions: Sequence[Question], scope: Scope, report: Callable[[Stage], None] = lambda stage: None
) -> Calibration:
    """Measure and derive, in the time that `scope` gives, and what answering its prompts and reading its depths take.

    Raises:
        DecodingError: as decoding would.
    """
    started = time.perf_counter()
    agenda = Agenda(report, _estimates(subject, scope, len(questions)))
    with Watch() as watch:
        agenda.begin("costs of a round")
        stopwatch = Stopwatch(scope.table_s, least=scope.repeats)
        bench = Bench(subject.target, subject.drafter, stopwatch)
        first = bench.plain()
        levels = [bench.level(_widths(subject.drafter, scope), _caps(subject.drafter), agenda.tick)]
        ahead = bench.ahead(agenda.tick)
        _refine(agenda, scope, levels[0], len(questions))
        agenda.begin("prefill")
        prefill = list(_prefill(subject.target, scope, stopwatch, agenda))
        rate = max(found.tokens_per_s for found in prefill)
        bytes_per_token = None
        if depths := _possible(scope.depths, subject.target):
            agenda.plan("depth", depths[-1] / rate * 1.3 + 3 * scope.table_s * len(depths))
            agenda.begin("depth")
            found, bytes_per_token = _deepen(subject, bench, depths, _chunk(prefill), scope, agenda)
            levels += found
        agenda.begin("answers")
        traces, others = _record(subject, questions, scope, agenda)
        drift = _repeat(subject, stopwatch) / first.ms - 1.0
    curves = Curves(tuple(levels), ahead, tuple(prefill), _lookup_ms(questions), bytes_per_token, drift)
    agenda.begin("derivation")
    evidence = _evidence(subject.drafter, curves, traces, subject.lookup)
    decision = decide(evidence, [level.depth for level in levels[1:]], agenda.tick)
    bits = subject.drafter_bits
    if subject.other is not None and others is not None:
        # Depths are left out: this only asks which precision wins.
        draft, other_traces = others
        cheaper = replace(curves, levels=(replace(levels[0], draft=draft.draft),))
        rival = decide(_evidence(subject.drafter, cheaper, other_traces, subject.lookup), (), agenda.tick)
        if rival.overall.tried_speedup.value > _BETTER * decision.overall.tried_speedup.value:
            bits = subject.other[0]
    agenda.close()
    return Calibration(
        curves,
        tuple(traces),
        prior_of(traces, evidence.block),
        decision,
        bits,
        watch.conditions,
        time.perf_counter() - started,
    )


def place(tried: Tried | None, index: LookupIndex, truth: Sequence[int]) -> Place:
    """What could be proposed after the newest token of `index`, when `truth` is what the target goes on with."""
    match = index.match()
    matched = 0
    while matched < min(len(match.tokens), len(truth)) and match.tokens[matched] == truth[matched]:
        matched += 1
    return Place(
        drafted=tried.accepted if tried else 0,
        confidences=tried.confidences if tried else None,
        suffix=index.suffix_length,
        offered=len(match.tokens),
        matched=matched,
    )


def _evidence(drafter: Drafter | None, curves: Curves, traces: Sequence[Trace], lookup: bool) -> Evidence:
    return Evidence(
        curves.costs(MEASURED),
        traces,
        block=drafter.block if drafter else 0,
        lookup=lookup,
        confidence=drafter is not None and drafter.has_confidence,
        noise=curves.noise,
    )


def _record(
    subject: Subject, questions: Sequence[Question], scope: Scope, agenda: Agenda
) -> tuple[list[Trace], tuple[Level, list[Trace]] | None]:
    """Traces of the questions' answers; and where another precision of the drafter is cheaper, its costs and traces."""
    target, drafter = subject.target, subject.drafter
    prompts = [list(question.tokens) for question in questions]
    answers = greedy_answers(target, prompts, scope.answer_tokens)
    agenda.tick()

    def traces_of(drafter: Drafter | None) -> list[Trace]:
        recorded = (
            _trace(target, drafter, question.klass, prompt, answer, agenda)
            for question, prompt, answer in zip(questions, prompts, answers, strict=True)
        )
        return [trace for trace in recorded if trace.places]

    traces = traces_of(drafter)
    if subject.other is None or drafter is None or scope.quick:
        return traces, None
    other = subject.other[1]()
    stopwatch = Stopwatch(scope.table_s / 4)
    ours, theirs = (Bench(target, one, stopwatch).level((1,), [one.block], agenda.tick) for one in (drafter, other))
    if theirs.draft[other.block].ms > _CHEAPER * ours.draft[drafter.block].ms:
        return traces, None
    costs = Bench(target, other, stopwatch).level((1,), _caps(other), agenda.tick)
    return traces, (costs, traces_of(other))


def _trace(
    target: Target, drafter: Drafter | None, klass: str, prompt: list[int], answer: list[int], agenda: Agenda
) -> Trace:
    tried: list[Tried] = []
    if drafter is not None:
        tried = drafts_along(drafter, target, prompt, answer, agenda.tick)
    index, places = LookupIndex(prompt), []
    for at in range(len(answer) - 1):
        index.extend((answer[at],))
        places.append(place(tried[at] if tried else None, index, answer[at + 1 :]))
    return Trace(klass, len(prompt), tuple(places))


def _deepen(
    subject: Subject, bench: Bench, depths: Sequence[int], chunk: int, scope: Scope, agenda: Agenda
) -> tuple[list[Level], float | None]:
    levels, start = [], bench.depth
    before = mx.get_active_memory()
    for depth in depths:
        bench.advance(depth, chunk)
        levels.append(bench.level(DEEP_WIDTHS, _caps(subject.drafter)[-1:], agenda.tick))
    grown = mx.get_active_memory() - before
    return levels, grown / (bench.depth - start) if grown > 0 else None


def _prefill(target: Target, scope: Scope, stopwatch: Stopwatch, agenda: Agenda) -> Iterator[Prefill]:
    """As many tokens as the time allows by a first look, in its chunks of an eighth up to all of them."""
    look = measure_prefill(target, 128, 128, stopwatch)
    agenda.tick()
    if scope.quick:
        yield look
        return
    tokens = 256
    while tokens < min(4096, target.context_window // 2) and 2 * tokens <= look.tokens_per_s * scope.prefill_s:
        tokens *= 2
    for chunk in (tokens // 8, tokens // 4, tokens // 2, tokens):
        yield measure_prefill(target, chunk, tokens, stopwatch)
        agenda.tick()


def _chunk(prefill: Sequence[Prefill]) -> int:
    """The smallest chunk within 3 % of the best rate: progress and cancelling stay fine-grained."""
    best = max(found.tokens_per_s for found in prefill)
    return min(found.chunk for found in prefill if found.tokens_per_s >= 0.97 * best)


def _possible(depths: Sequence[int], target: Target) -> list[int]:
    return sorted(depth for depth in set(depths) if SHALLOW_TOKENS < depth < target.context_window - max(WIDE))


def _repeat(subject: Subject, stopwatch: Stopwatch) -> float:
    return Bench(subject.target, subject.drafter, stopwatch).plain().ms


def _lookup_ms(questions: Sequence[Question]) -> float:
    index, tokens = LookupIndex(), [token for question in questions for token in question.tokens] * 2
    started = time.perf_counter()
    for token in tokens:
        index.extend((token,))
        index.match()
    return (time.perf_counter() - started) * 1e3 / max(len(tokens), 1)


def _widths(drafter: Drafter | None, scope: Scope) -> list[int]:
    block = drafter.block if drafter else 7
    if scope.quick:
        return sorted({*QUICK_WIDTHS, block + 1})
    return sorted({*range(1, block + 2), *WIDE})


def _caps(drafter: Drafter | None) -> list[int]:
    return list(range(1, drafter.block + 1)) if drafter else []


def _estimates(subject: Subject, scope: Scope, questions: int) -> dict[str, float]:
    """Before anything is known; corrected as soon as something is."""
    found = {"costs of a round": 8 * scope.table_s, "prefill": 4 * scope.prefill_s}
    if _possible(scope.depths, subject.target):
        found["depth"] = 15.0
    return found | {"answers": questions * scope.answer_tokens * 0.03, "derivation": 2.0}


def _refine(agenda: Agenda, scope: Scope, level: Level, questions: int) -> None:
    batch_ms = interpolate(tuple((width, timing.ms) for width, timing in sorted(level.verify.items())), questions)
    draft_ms = max((timing.ms for timing in level.draft.values()), default=0.0)
    agenda.plan("answers", scope.answer_tokens * (batch_ms * 1.2 + questions * draft_ms * 1.2) / 1e3 + 2.0)
