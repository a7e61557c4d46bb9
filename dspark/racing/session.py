"""Runs the races of a plan, one after another in this process: loads a pair, enters the arms, hands out the runner."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark.engine import Engine, Loaded, LoadOptions
from dspark.machine import stamp
from dspark.racing.arms import default_arms, enter
from dspark.racing.plan import Choice, Heat, Plan
from dspark.racing.result import Setup
from dspark.racing.runner import Runner


@dataclass(frozen=True)
class Start:
    """A race that is ready to run."""

    runner: Runner
    setup: Setup
    loaded: Loaded
    stamp: Mapping[str, Any]


class Session:
    """One engine for all races of `plan`; a pair stays loaded while the heats ask for it, and is tried to load once."""

    def __init__(self, plan: Plan, command: str) -> None:
        self._plan, self._command = plan, command
        self._engine = Engine()
        self._held: Choice | None = None
        self._refused: dict[Choice, Exception] = {}

    def load(self, choice: Choice) -> Loaded:
        """Load what `choice` names, unless it is loaded. Raises as `dspark.engine.Engine.load`."""
        if choice in self._refused:
            raise self._refused[choice]
        loaded = self._engine.loaded
        if loaded is None or self._held != choice:
            self._held = choice
            try:
                loaded = self._engine.load(LoadOptions(**vars(choice)))
            except Exception as error:
                self._refused[choice] = error
                raise
        return loaded

    def start(self, heat: Heat) -> Start:
        """Everything up to the first answer.

        Raises:
            As `load`; UsageError and PromptError where arms or prompts do not fit the pair.
        """
        plan, engine = self._plan, self._engine
        loaded = self.load(heat.choice)
        entrants = enter(default_arms(loaded.modes, engine) if plan.arms is None else plan.arms, engine)
        now = datetime.datetime.now(datetime.UTC)
        runner = Runner(
            engine,
            entrants,
            plan.prompts_at(heat),
            max_tokens=plan.max_tokens,
            trials=plan.trials,
            context_window=loaded.context_window,
            sampling=plan.sampling,
            cooldown_s=plan.cooldown_s,
        )
        setup = Setup(self._command, plan.max_tokens, plan.trials, plan.seed, now, plan.sampling, plan.cooldown_s)
        return Start(runner, setup, loaded, stamp())
