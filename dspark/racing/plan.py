"""What is to be raced: models, arms, prompts, depths, and how often. One race, or a suite of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dspark.decoding.request import Sampling
from dspark.errors import UsageError
from dspark.racing.arms import Arm
from dspark.racing.depth import spread_out
from dspark.racing.prompts import Prompt, depth_label

DEMO = "demo"
LONGEST_COOLDOWN_S = 3600.0


@dataclass(frozen=True)
class Choice:
    """A pair to load, as `dspark.pair.LoadOptions` names it: that class itself needs MLX."""

    model: str = DEMO
    drafter: str | None = None
    precision: str | None = None
    kv_bits: int | None = None
    drafter_bits: int | Literal["auto"] = "auto"
    drafter_window: int | Literal["auto"] = "auto"
    sdpa_split: bool | None = None
    profile: str | None = None
    trust_remote_code: bool = False

    @property
    def label(self) -> str:
        """Model, and whatever is not as usual: `demo drafter=none kv_bits=8`."""
        usual = Choice(self.model)
        names = (name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(usual, name))
        return " ".join([self.model, *(f"{name}={getattr(self, name)}" for name in names)])


@dataclass(frozen=True)
class Plan:
    """`arms` None stands for plain decoding against every mode of each pair. `cooldown_s` is waited between answers."""

    choices: tuple[Choice, ...]
    arms: tuple[Arm, ...] | None
    prompts: tuple[Prompt, ...]
    depths: tuple[int, ...] = (0,)
    max_tokens: int = 64
    trials: int = 3
    seed: int = 0
    cooldown_s: float = 0.0
    sampling: Sampling = Sampling()

    def __post_init__(self) -> None:
        """Raises UsageError where a number cannot be meant."""
        for name, count in (("--max-tokens", self.max_tokens), ("--trials", self.trials)):
            if count < 1:
                raise UsageError(f"{name} {count}: must be 1 or more")
        if not (math.isfinite(self.cooldown_s) and 0 <= self.cooldown_s <= LONGEST_COOLDOWN_S):
            raise UsageError(f"--cooldown {self.cooldown_s:g}: give 0 to {LONGEST_COOLDOWN_S:g} seconds")
        self.sampling.check(vocabulary=0)  # before anything is fetched; it has no bias, so that any vocabulary will do

    def heats(self) -> Iterator["Heat"]:
        """The races of a suite, model by model, a depth each."""
        for choice in self.choices:
            for depth in self.depths:
                yield Heat(choice, (depth,))

    def prompts_at(self, heat: "Heat") -> list[Prompt]:
        return spread_out(self.prompts, heat.depths)


@dataclass(frozen=True)
class Heat:
    """One race: a pair, at one depth or several."""

    choice: Choice
    depths: tuple[int, ...]

    @property
    def name(self) -> str:
        """`demo at 4k`; unique within a suite."""
        depths = ",".join(depth_label(depth) for depth in self.depths)
        return self.choice.label if self.depths == (0,) else f"{self.choice.label} at {depths}"
