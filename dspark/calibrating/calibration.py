"""Calibrating a loaded pair: measure its curves, record what its drafts are worth, and derive the settings that win.

Everything is measured here, in this process, on this machine; only the arithmetic is `dspark.tuning`'s.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx

from dspark.calibrating.agenda import Agenda, Stage
from dspark.calibrating.rounds import AnswerRounds
from dspark.calibrating.scope import Chosen, Question, Scope, shortest
from dspark.decoding.acceptance import accepted_prefix
from dspark.decoding.lookup import LookupIndex
from dspark.drafters.along import Answered, Tried, answered, drafts_along
from dspark.drafters.drafter import Drafter
from dspark.drafters.loading import UNQUANTIZED, default_bits
from dspark.errors import UsageError
from dspark.machine import Conditions, Watch, bandwidth, describe, stamp
from dspark.pair import Pair, drafter_again
from dspark.targets.target import Target
from dspark.tuning.acceptance import Prior, prior_of
from dspark.tuning.curves import Curves, Level, Prefill
from dspark.tuning.decision import Decision, Evidence, Setting, decide
from dspark.tuning.measure import Bench, Shallow, measure_prefill
from dspark.tuning.profile import Measured, Profile, acceptance, curve_table, derived, profile_key
from dspark.tuning.timing import Stopwatch, Timing
from dspark.tuning.traces import Place, Trace

DEEP_WIDTHS = (1, 3, 8)
# Another precision of the drafter must win by this to be worth another load.
_BETTER = 1.02
# And it can only win where its drafts take clearly less time.
_CHEAPER = 0.9
# A first point that has become this much slower by the end, and more than its noise explains, tells of heat.
MOST_DRIFT = 0.1
_DRIFT_LOOKS = 3
# Where a row of a block costs this share of a plain step, still wider forwards cannot pay.
_DEAR_ROW = 0.5
QUICK_WIDTHS = (1, 2, 3, 4, 6, 8)
WIDE = (16, 32)
LOOK_TOKENS = 32
MEASURED = "measured by calibrate"
# A point that has moved by more than this says that a profile no longer holds.
MOST_OFF = 0.15


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
        if self.curves.drift is not None and abs(self.curves.drift) > MOST_DRIFT + 2 * self.curves.noise:
            found.append(
                f"one row cost {self.curves.drift:+.0%} at the end against the start: the machine was heating up, "
                "or busy; let it rest and calibrate again"
            )
        return tuple(found)


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
    before = pair.calibrated.profile.settings() if pair.calibrated.profile else {}
    subject = Subject(pair.target, pair.drafter, "lookup" in loaded.modes, bits, other, before)
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
    level = Bench(pair.target, drafter, Stopwatch(0.5)).level((1, block + 1), [block] if drafter else [])
    points = [
        Point("one row" if width == 1 else f"{width} rows", timing.ms, costs.verify_ms(width))
        for width, timing in level.verify.items()
    ]
    return points + [Point(f"a draft of {cap}", timing.ms, costs.draft_ms(cap)) for cap, timing in level.draft.items()]


@dataclass(frozen=True)
class Subject:
    """What is calibrated. `other` is the same drafter in another precision, as (bits, how to load it).

    `before` is what the calibration in force chose, by class.
    """

    target: Target
    drafter: Drafter | None
    lookup: bool
    drafter_bits: int | None = None
    other: tuple[int, Callable[[], Drafter]] | None = None
    before: Mapping[str, Setting] = field(default_factory=dict)


def calibrate(
    subject: Subject, questions: Sequence[Question], scope: Scope, report: Callable[[Stage], None] = lambda stage: None
) -> Calibration:
    """Measure and derive, in the time that `scope` gives, and what answering its prompts and reading its depths take.

    Raises:
        DecodingError: as decoding would.
    """
    started = time.perf_counter()
    agenda = Agenda(report, scope.estimates())
    with Watch() as watch:
        agenda.begin("costs of a round")
        stopwatch = Stopwatch(scope.timing_s, least=scope.repeats)
        bench = Bench(subject.target, subject.drafter, stopwatch)
        first = bench.plain()
        shallow = _shallow(subject, bench, questions, scope, agenda)
        levels = [shallow.level]
        agenda.begin("prefill")
        prefill = list(_prefill(subject.target, scope, stopwatch, agenda))
        rate = max(found.tokens_per_s for found in prefill)
        bytes_per_token = None
        depths = scope.depths_at(rate, subject.target.context_window)
        chosen, answers_s = scope.choose(questions, rate, levels[0])
        agenda.plan("depth", depths[-1] / rate * 1.2 + 6.0 * scope.timing_s * len(depths) if depths else 0.0)
        agenda.plan("answers", answers_s)
        agenda.begin("depth")
        if depths:
            found, bytes_per_token = _deepen(subject, bench, depths, _chunk(prefill), agenda)
            levels += found
        agenda.begin("answers")
        traces, others = _record(subject, chosen, scope, agenda)
        drift = _drift(subject, stopwatch, first)
        agenda.begin("bandwidth")
        moved = bandwidth.measure(describe()) if scope.bandwidth else None
    curves = Curves(
        tuple(levels),
        shallow.ahead,
        tuple(prefill),
        _lookup_ms(questions),
        bytes_per_token,
        drift,
        moved,
        shallow.host,
    )
    agenda.begin("derivation")
    evidence = _evidence(subject, curves, traces)
    decision = decide(evidence, [level.depth for level in levels[1:]], agenda.tick)
    bits = subject.drafter_bits
    if subject.other is not None and others is not None:
        # Depths are left out: this only asks which precision wins.
        draft, other_traces = others
        cheaper = replace(curves, levels=(replace(levels[0], draft=draft),))
        rival = decide(_evidence(subject, cheaper, other_traces), (), agenda.tick)
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
    return Place(
        drafted=tried.accepted if tried else 0,
        confidences=tried.confidences if tried else None,
        suffix=index.suffix_length,
        offered=len(match.tokens),
        matched=accepted_prefix(match.tokens, truth),
    )


def _evidence(subject: Subject, curves: Curves, traces: Sequence[Trace]) -> Evidence:
    drafter = subject.drafter
    return Evidence(
        curves.costs(MEASURED),
        traces,
        block=drafter.block if drafter else 0,
        lookup=subject.lookup,
        confidence=drafter is not None and drafter.has_confidence,
        noise=curves.noise,
        before=subject.before,
    )


def _record(
    subject: Subject, chosen: Chosen, scope: Scope, agenda: Agenda
) -> tuple[list[Trace], tuple[dict[int, Timing], list[Trace]] | None]:
    """Traces of the questions' answers; and where another precision of the drafter is cheaper, its costs and traces."""
    target, drafter = subject.target, subject.drafter
    prompts = [list(question.tokens) for question in chosen.questions]
    found = answered(target, drafter.taps if drafter else (), prompts, chosen.answer_tokens)
    agenda.tick()

    def traces_of(drafter: Drafter | None) -> list[Trace]:
        recorded = (
            _trace(drafter, question.klass, one, agenda) for question, one in zip(chosen.questions, found, strict=True)
        )
        return [trace for trace in recorded if trace.places]

    traces = traces_of(drafter)
    if subject.other is None or drafter is None or scope.quick:
        return traces, None
    other = subject.other[1]()
    stopwatch = Stopwatch(scope.timing_s / 4)
    ours, theirs = (Bench(target, one, stopwatch).drafts([one.block], agenda.tick) for one in (drafter, other))
    if theirs[other.block].ms > _CHEAPER * ours[drafter.block].ms:
        return traces, None
    return traces, (Bench(target, other, stopwatch).drafts(_caps(other), agenda.tick), traces_of(other))


def _trace(drafter: Drafter | None, klass: str, answered: Answered, agenda: Agenda) -> Trace:
    prompt, answer = answered.prompt, answered.answer
    tried: list[Tried] = []
    if drafter is not None:
        tried = drafts_along(drafter, answered.rows, prompt, answer, agenda.tick)
    index, places = LookupIndex(prompt), []
    for at in range(len(answer) - 1):
        index.extend((answer[at],))
        places.append(place(tried[at] if tried else None, index, answer[at + 1 :]))
    return Trace(klass, len(prompt), tuple(places))


def _deepen(
    subject: Subject, bench: Bench, depths: Sequence[int], chunk: int, agenda: Agenda
) -> tuple[list[Level], float | None]:
    levels, start = [], bench.depth
    before = mx.get_active_memory()
    for depth in depths:
        bench.advance(depth, chunk)
        levels.append(bench.level(DEEP_WIDTHS, _caps(subject.drafter)[-1:], agenda.tick))
    grown = mx.get_active_memory() - before
    return levels, grown / (bench.depth - start) if grown > 0 else None


def _shallow(subject: Subject, bench: Bench, questions: Sequence[Question], scope: Scope, agenda: Agenda) -> Shallow:
    """All widths of a block and whole rounds; and of the widest forwards those that may be worth their time."""
    drafter = subject.drafter
    block = drafter.block if drafter else 7
    narrow = sorted({*QUICK_WIDTHS, block + 1}) if scope.quick else list(range(1, block + 2))
    prompts = [question.tokens for question in shortest(questions, 1)]
    live = AnswerRounds(subject.target, drafter, prompts) if drafter else None
    found = bench.shallow(narrow, _caps(drafter), live, agenda.tick)
    level = found.level
    row_ms = (level.verify[block + 1].ms - level.verify[1].ms) / block
    if scope.quick or row_ms > _DEAR_ROW * level.verify[1].ms:
        return found
    wide = bench.level([width for width in WIDE if width > block + 1], [], agenda.tick)
    return replace(found, level=replace(level, verify={**level.verify, **wide.verify}))


def _prefill(target: Target, scope: Scope, stopwatch: Stopwatch, agenda: Agenda) -> Iterator[Prefill]:
    """As many tokens as the time allows by a first look, in chunks of a quarter, a half and all of them."""
    for _ in range(2):  # the first one warms
        look = measure_prefill(target, LOOK_TOKENS, LOOK_TOKENS, stopwatch)
    agenda.tick()
    tokens = LOOK_TOKENS
    while tokens < min(4096, target.context_window // 2) and 2 * tokens <= look.tokens_per_s * scope.prefill_s:
        tokens *= 2
    if scope.quick or tokens < 4 * LOOK_TOKENS:
        yield look
        return
    for chunk in (tokens // 4, tokens // 2, tokens):
        yield measure_prefill(target, chunk, tokens, stopwatch)
        agenda.tick()


def _chunk(prefill: Sequence[Prefill]) -> int:
    """The smallest chunk within 3 % of the best rate: progress and cancelling stay fine-grained."""
    best = max(found.tokens_per_s for found in prefill)
    return min(found.chunk for found in prefill if found.tokens_per_s >= 0.97 * best)


def _drift(subject: Subject, stopwatch: Stopwatch, first: Timing) -> float:
    """How much slower one row has become. What is hot or busy stays so: a slow moment has passed at the next look."""
    bench = Bench(subject.target, subject.drafter, stopwatch)
    drift = 0.0
    for _ in range(_DRIFT_LOOKS):
        drift = bench.plain().ms / first.ms - 1.0
        if abs(drift) <= MOST_DRIFT:
            break
    return drift


def _lookup_ms(questions: Sequence[Question]) -> float:
    index, tokens = LookupIndex(), [token for question in questions for token in question.tokens] * 2
    started = time.perf_counter()
    for token in tokens:
        index.extend((token,))
        index.match()
    return (time.perf_counter() - started) * 1e3 / max(len(tokens), 1)


def _caps(drafter: Drafter | None) -> list[int]:
    return list(range(1, drafter.block + 1)) if drafter else []
