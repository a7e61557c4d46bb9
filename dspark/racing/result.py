"""The result of a race: everything that was measured and what it comes to; exporters only read it."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspark.decoding.request import Sampling
from dspark.decoding.verdict import END, Evidence, Outcome, worst
from dspark.machine.watch import Conditions
from dspark.racing.arms import Entrant
from dspark.racing.comparison import Check, Judge, check
from dspark.racing.prompts import Prompt, Sections, sections
from dspark.racing.runner import Runner, told
from dspark.racing.statistics import Table, summarise
from dspark.racing.trials import Trial
from dspark.racing.warnings import RaceWarning, find

if TYPE_CHECKING:
    from dspark.engine import Loaded

SCHEMA = 1


@dataclass(frozen=True)
class Setup:
    """How the race was called, beyond its arms and prompts."""

    command: str
    max_tokens: int
    trials: int
    seed: int
    date: datetime.datetime
    sampling: Sampling = Sampling()
    cooldown_s: float = 0.0


@dataclass(frozen=True)
class RaceResult:
    """One race.

    The first of `entrants` is plain decoding. `failures` gives the error of each arm that dropped out, `spelling` the
    text of the token ids that the evidence in `checks` names.
    """

    setup: Setup
    loaded: "Loaded"
    stamp: Mapping[str, Any]
    entrants: tuple[Entrant, ...]
    prompts: tuple[Prompt, ...]
    trials: tuple[Trial, ...]
    failures: Mapping[str, str]
    table: Table
    checks: tuple[Check, ...]
    spelling: Mapping[int, str]
    conditions: Conditions
    warnings: tuple[RaceWarning, ...]
    interrupted: bool

    @property
    def verdict(self) -> Outcome | None:
        """The worst outcome of all comparisons.

        None where no answer was held against plain decoding's, and where plain decoding failed on the way: what it did
        not answer cannot be called equal. A divergence that was found by then stands.
        """
        if all(check.arm == check.against for check in self.checks):
            return None
        outcome = worst(check.outcome for check in self.checks)
        return None if self.baseline in self.failures and outcome != "diverged" else outcome

    @property
    def sections(self) -> Sections:
        """What is shown apart: classes at depths, and those together of which there are several."""
        return {
            name: members for name, members in sections(self.prompts).items() if len(members) > 1 or members == (name,)
        }

    @property
    def depths(self) -> list[int]:
        """Tokens before the questions, ascending."""
        return sorted({prompt.depth for prompt in self.prompts})

    @property
    def baseline(self) -> str:
        return self.entrants[0].label

    def repeatable(self, arm: str) -> bool | None:
        """Whether `arm` gave one answer to each prompt in every trial; None where no prompt was tried twice."""
        own = [check for check in self.checks if check.arm == check.against == arm]
        return all(check.outcome == "identical" for check in own) if own else None

    def against_baseline(self, arm: str) -> Outcome | None:
        """The worst outcome of `arm` against plain decoding; None where they were not compared."""
        return worst(check.outcome for check in self.checks if check.arm == arm and check.against != arm)


def conclude(
    runner: Runner,
    setup: Setup,
    loaded: "Loaded",
    stamp: Mapping[str, Any],
    conditions: Conditions,
    interrupted: bool = False,
) -> RaceResult:
    """Compare and summarise what `runner` has recorded so far.

    After an interrupt ties are not followed further: the user wants the prompt back. An error while comparing is a
    failure of plain decoding, which is what answers are judged by; what was measured and found until then stays.
    """
    labels = [entrant.label for entrant in runner.entrants]
    judge = Judge(
        runner.decoder, loaded.dtype, loaded.eos, setup.max_tokens, follow=not interrupted, sampling=runner.sampling
    )
    checks: list[Check] = []
    failures = dict(runner.failures)
    try:
        for each in check(runner.trials, runner.encoded, labels, judge):
            checks.append(each)
    except Exception as error:
        failures.setdefault(labels[0], f"comparing the answers: {told(error)}")
    table = summarise(runner.trials, labels, sections(runner.prompts), setup.seed)
    return RaceResult(
        setup=setup,
        loaded=loaded,
        stamp=stamp,
        entrants=runner.entrants,
        prompts=runner.prompts,
        trials=tuple(runner.trials),
        failures=failures,
        table=table,
        checks=tuple(checks),
        spelling={token: runner.decoder.decode([token]) for token in _named(checks)},
        conditions=conditions,
        warnings=tuple(find(runner.entrants, runner.trials, table, conditions, checks)),
        interrupted=interrupted,
    )


def _named(checks: Sequence[Check]) -> set[int]:
    evidence = [each for check in checks for each in check.evidence]
    return {token for each in evidence for token in _tokens(each) if token is not None and token != END}


def _tokens(evidence: Evidence) -> Iterator[int | None]:
    yield from (evidence.expected, evidence.found)
    if evidence.top_two is not None:
        yield from (evidence.top_two.first, evidence.top_two.second)
