"""From cost curves and recorded answers to settings: which cap, whether to look things up, or not to speculate at all.

Every candidate is replayed over the recorded answers at the measured costs, with the very pilots that decode. A setting
must beat plain decoding by more than chance explains; among settings that cannot be told apart the smallest cap wins.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dspark.tuning.acceptance import Prior, prior_of
from dspark.tuning.costs import CostModel, knee
from dspark.tuning.pilot import MAX_ROUND_TOKENS, Pilot, pilot_for
from dspark.tuning.simulation import Replay, replay
from dspark.tuning.traces import Trace, by_class

# Settings closer than this to the best count as equal, and no further than `_MOST_TIE` however noisy the curves are.
_LEAST_TIE, _MOST_TIE = 0.005, 0.03
# Standard errors by which a gain must stand clear of nothing. Of 500 simulated machines 485 come within 2 % of the best
# so, 480 with two; either way none loses more than 1 % to plain decoding.
_SURE = 1.0
# Few rounds tell their own scatter badly: so many make it count twice.
_FEW_ROUNDS = 8
# A fixed cap must beat the controller by this to be pinned in its place.
_PIN = 1.02
CONFIDENCES = (0.0, 0.3, 0.5, 0.7)
LOOKUP_CAPS = (4, 8, 16, MAX_ROUND_TOKENS)

Means = Literal["baseline", "lookup", "drafter"]


@dataclass(frozen=True)
class Setting:
    """A way to decode. Cap 0 is plain; without `drafter` only the context is looked up."""

    cap: int | Literal["auto"]
    drafter: bool = False
    lookup: bool = False
    confidence: float = 0.0

    @property
    def means(self) -> Means:
        """What proposes."""
        if self.cap == 0:
            return "baseline"
        return "drafter" if self.drafter else "lookup"

    @property
    def fixed_cap(self) -> int:
        """The cap of a setting that has one."""
        assert isinstance(self.cap, int), "fixed settings have fixed caps"
        return self.cap

    def __str__(self) -> str:
        """`drafter cap=4 lookup=on confidence=0.3`."""
        if not self.drafter:
            return "plain" if self.cap == 0 else f"lookup cap={self.cap}"
        return f"drafter cap={self.cap} lookup={'on' if self.lookup else 'off'} confidence={self.confidence:g}"


PLAIN_SETTING = Setting(0)


@dataclass(frozen=True)
class Speedup:
    """Rate of a setting in rates of plain decoding: `value`, and `low`, a standard error less (for few rounds more).

    `round_tokens` are settled and `round_steps` plain steps spent in a mean round.
    """

    value: float
    low: float
    round_tokens: float = 1.0
    round_steps: float = 1.0


AS_PLAIN = Speedup(1.0, 1.0)


@dataclass(frozen=True)
class Choice:
    """The best fixed setting of some answers, and what the best speculative one reaches (the same unless cap is 0)."""

    setting: Setting
    speedup: Speedup
    tried: Setting
    tried_speedup: Speedup


@dataclass(frozen=True)
class Decision:
    """`overall` weighs all classes alike. `default` is what mode auto stands for, at `default_speedup`.

    `depths` are choices over all classes with so many tokens of context.
    """

    overall: Choice
    classes: Mapping[str, Choice]
    depths: Mapping[int, Choice]
    default: Setting
    default_speedup: Mapping[str, Speedup]
    reason: str


OVERALL = ""
"""The name of all classes together among those of classes."""


@dataclass(frozen=True)
class Evidence:
    """What a decision rests on. `noise` is the relative error of the curves, `block` the drafter's (0 without one).

    `before` is what an earlier calibration chose, by class: it stays where it is as good as the best, so that two
    measurements of the same thing do not come to two answers by chance.
    """

    costs: CostModel
    traces: Sequence[Trace]
    block: int
    lookup: bool = True
    confidence: bool = False
    noise: float = 0.0
    before: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def tie(self) -> float:
        """Settings this close, relatively, are not told apart."""
        return min(_LEAST_TIE + self.noise, _MOST_TIE)


def decide(evidence: Evidence, depths: Iterable[int] = (), tick: Callable[[], None] = lambda: None) -> Decision:
    """Derive all settings. `tick` is called now and then: some thousand replays take a second or so."""
    groups = by_class(evidence.traces)
    fixed = {setting: _speedups(setting, evidence, groups, tick=tick) for setting in candidates(evidence)}
    before = evidence.before
    together = {setting: _together(found.values()) for setting, found in fixed.items()}
    overall = _choose(together, evidence.tie, before.get(OVERALL))
    classes = {
        klass: _choose(
            {setting: found[klass] for setting, found in fixed.items()},
            evidence.tie,
            before.get(klass),
            usual=overall.tried,
        )
        for klass in groups
    }
    default, reached = _default(evidence, groups, fixed, overall, tick)
    return Decision(
        overall=overall,
        classes=classes,
        depths={tokens: _at_depth(evidence, groups, tokens, tick) for tokens in depths},
        default=default,
        default_speedup=reached,
        reason=explain(overall, evidence.costs),
    )


def candidates(evidence: Evidence) -> list[Setting]:
    """Every fixed setting worth trying: caps of the drafter, or of looking up where there is none."""
    if not evidence.block:
        return [Setting(cap, False, True) for cap in LOOKUP_CAPS] if evidence.lookup else []
    found = []
    thresholds = CONFIDENCES if evidence.confidence else CONFIDENCES[:1]
    lookups = (True, False) if evidence.lookup else (False,)
    for cap in range(1, evidence.block + 1):
        found += [Setting(cap, True, lookup, confidence) for confidence in thresholds for lookup in lookups]
    return found


def measured_rates(replays: Iterable[Replay], plain_ms: float, noise: float) -> Speedup:
    """Tokens a plain step's time over some answers.

    Its error has two sources: the rounds that happened to be recorded, and the curves, where two points are compared.
    """
    rounds = [(tokens, ms / plain_ms) for found in replays for tokens, ms in found.rounds]
    tokens, steps = sum(t for t, _ in rounds), sum(s for _, s in rounds)
    if not rounds or steps <= 0:
        return AS_PLAIN
    value = tokens / steps
    error = math.hypot(math.sqrt(sum((t - value * s) ** 2 for t, s in rounds)) / steps, math.sqrt(2) * noise * value)
    sure = _SURE * (1.0 + _FEW_ROUNDS / len(rounds))
    return Speedup(value, max(value - sure * error, 0.0), tokens / len(rounds), steps / len(rounds))


def _speedups(
    setting: Setting,
    evidence: Evidence,
    groups: Mapping[str, Sequence[Trace]],
    costs: CostModel | None = None,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Speedup]:
    costs = costs or evidence.costs
    found = {}
    for klass, traces in groups.items():
        replays = [replay(trace, _pilot(setting, evidence, costs, trace), costs) for trace in traces]
        found[klass] = measured_rates(replays, costs.plain_ms, evidence.noise)
        tick()
    return found


def _pilot(setting: Setting, evidence: Evidence, costs: CostModel, trace: Trace) -> Pilot:
    prior = Prior()
    if setting.cap == "auto":
        # An answer must not be foretold from itself.
        prior = prior_of((other for other in evidence.traces if other is not trace), evidence.block)
    return pilot_for(
        setting.cap,
        block=evidence.block if setting.drafter else 0,
        lookup=setting.lookup,
        confidence=setting.confidence,
        costs=lambda: costs,
        prior=prior,
    )


def _together(speedups: Iterable[Speedup]) -> Speedup:
    """All classes alike: geometric means, and independent errors."""
    found = [speedup for speedup in speedups if speedup.value > 0]
    if not found:
        return AS_PLAIN
    log_mean = sum(math.log(one.value) for one in found) / len(found)
    error = math.sqrt(sum((1.0 - one.low / one.value) ** 2 for one in found)) / len(found)
    return Speedup(
        math.exp(log_mean),
        math.exp(log_mean) * max(1.0 - error, 0.0),
        sum(one.round_tokens for one in found) / len(found),
        sum(one.round_steps for one in found) / len(found),
    )


def _choose(
    tried: Mapping[Setting, Speedup], tie: float, before: Setting | None = None, usual: Setting | None = None
) -> Choice:
    """The smallest cap that is as good as the best, or the one before; plain where the best is no sure gain.

    `usual` is the setting of all classes together: a class has its own only where it is told apart from that one.
    """
    if not tried:
        return Choice(PLAIN_SETTING, AS_PLAIN, PLAIN_SETTING, AS_PLAIN)
    most = max(speedup.value for speedup in tried.values())
    near = {setting: speedup for setting, speedup in tried.items() if speedup.value >= most * (1.0 - tie)}
    smallest = min(setting.fixed_cap for setting in near)
    best = max((setting for setting in near if setting.fixed_cap == smallest), key=lambda setting: near[setting].value)
    if usual in near:
        best = usual
    if before is not None and before in tried and tried[before].value >= most * (1.0 - _MOST_TIE):
        best = before
    # What was chosen before also keeps its side of the line between a gain and none.
    sure = tried[best].low > 1.0 or (before == best and tried[best].value > 1.0)
    if not sure or (before == PLAIN_SETTING and tried[best].low <= 1.0 + _MOST_TIE):
        return Choice(PLAIN_SETTING, AS_PLAIN, best, tried[best])
    return Choice(best, tried[best], best, tried[best])


def _at_depth(
    evidence: Evidence, groups: Mapping[str, Sequence[Trace]], tokens: int, tick: Callable[[], None]
) -> Choice:
    costs = evidence.costs.at(tokens)
    tried = {
        setting: _together(_speedups(setting, evidence, groups, costs, tick).values())
        for setting in candidates(evidence)
        if setting.confidence == 0.0
    }
    return _choose(tried, evidence.tie)


def _default(
    evidence: Evidence,
    groups: Mapping[str, Sequence[Trace]],
    fixed: Mapping[Setting, Mapping[str, Speedup]],
    overall: Choice,
    tick: Callable[[], None],
) -> tuple[Setting, Mapping[str, Speedup]]:
    """The controller with all that pays, or a pinned cap where it does better, or plain decoding."""
    tried = {}
    if evidence.block:
        tried[Setting("auto", True, evidence.lookup)] = evidence.block
    if evidence.lookup:
        tried[Setting("auto", False, True)] = 0
    reached = {setting: _speedups(setting, evidence, groups, tick=tick) for setting in tried}
    totals = {setting: _together(found.values()) for setting, found in reached.items()}
    best = max(totals, key=lambda setting: totals[setting].value, default=PLAIN_SETTING)
    if overall.setting.cap != 0 and overall.speedup.value > _PIN * totals.get(best, AS_PLAIN).value:
        return overall.setting, fixed[overall.setting]
    if best.cap == 0 or totals[best].low <= 1.0:
        return PLAIN_SETTING, dict.fromkeys(groups, AS_PLAIN)
    return best, reached[best]


def explain(choice: Choice, costs: CostModel) -> str:
    """One sentence: what is chosen, what it reaches, and what it costs."""
    tried, speedup = choice.tried, choice.tried_speedup
    if tried.cap == 0:
        return "do not speculate here: neither a drafter nor looking things up is possible"
    name = f"cap {tried.cap}" if tried.drafter else f"looking up at most {tried.cap} tokens"
    why = (
        f"a round settles {speedup.round_tokens:.2f} tokens and costs {speedup.round_steps:.2f} plain steps "
        f"({_widths(costs)})"
    )
    if choice.setting.cap != 0:
        return f"{name} reaches {speedup.value:.2f}x of plain decoding: {why}"
    if speedup.value > 1.0:
        return (
            f"do not speculate here: {name} reaches {speedup.value:.2f}x, no more than chance explains "
            f"({speedup.low:.2f}x is as likely): {why}"
        )
    return f"do not speculate here: {speedup.value:.2f}x of plain decoding is the best reached, with {name}: {why}"


def _widths(costs: CostModel) -> str:
    widths = [width for width, _ in costs.verify if width <= 8]
    dear = knee([costs.verify_ms(width) for width in range(1, widths[-1] + 1)])
    last = f"{widths[-1]} rows cost {costs.verify_ms(widths[-1]) / costs.plain_ms:.2f}"
    return f"{last}, the first dear row is number {dear}" if dear else last
