"""Results of earlier races, read back from their JSON: what a comparison of two needs of them."""

import math
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from dspark.errors import UsageError
from dspark.machine.watch import Conditions
from dspark.racing.result import SCHEMA

LARGEST_BYTES = 256 * 2**20


class _Read(BaseModel):
    """Keys that are not needed here are left alone: a later version may add its own."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class SavedPrompt(_Read):
    klass: str = Field(alias="class")
    depth: int = 0
    prompt: str


class SavedArm(_Read):
    label: str
    resolved: dict[str, Any]
    error: str | None


class SavedTrial(_Read):
    prompt: int = Field(ge=0)
    arm: str
    trial: int
    total_s: float = Field(gt=1e-9, lt=1e9)  # a rate can be made of it, and rates of rates
    tokens: list[int]

    @property
    def log_rate(self) -> float:
        """Logarithm of tokens a second, end to end; an answer without a token counts as one."""
        return math.log(max(len(self.tokens), 1) / self.total_s)


class SavedSummary(_Read):
    verdict: Literal["identical", "tied", "diverged"] | None


class SavedRace(_Read):
    schema_: int = Field(alias="schema")
    date: str
    interrupted: bool
    stamp: dict[str, Any]
    pair: dict[str, Any]
    settings: dict[str, Any]
    arms: list[SavedArm] = Field(min_length=1)
    prompts: list[SavedPrompt]
    summary: SavedSummary
    conditions: Conditions
    trials: list[SavedTrial]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        labels = [arm.label for arm in self.arms]
        if any(trial.prompt >= len(self.prompts) for trial in self.trials):
            raise ValueError("a trial belongs to no prompt")
        if any(trial.arm not in labels for trial in self.trials):
            raise ValueError("a trial belongs to no arm")
        if len({*labels}) < len(labels):
            raise ValueError("two arms have the same label")
        if len({(trial.prompt, trial.arm, trial.trial) for trial in self.trials}) < len(self.trials):
            raise ValueError("an answer stands there twice")
        return self


class SavedEntry(_Read):
    name: str
    error: str | None = None
    result: SavedRace | None = None


class SavedSeries(_Read):
    schema_: int = Field(alias="schema")
    races: list[SavedEntry]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len({entry.name for entry in self.races}) < len(self.races):
            raise ValueError("two races have the same name")
        return self


def read_races(path: Path) -> dict[str, SavedEntry]:
    """The races of a result of `race --json`, by name; one race alone has the name "". Raises UsageError."""
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--compare {path} cannot be read ({error.strerror or error}); check the path") from error
    if len(content) > LARGEST_BYTES:
        raise UsageError(f"--compare {path}: larger than 256 MB, which no race is; check the path")
    try:
        document = from_json(content)
        if isinstance(document, dict) and "races" in document:
            series = SavedSeries.model_validate(document)
            found, schema = {entry.name: entry for entry in series.races}, series.schema_
        else:
            race = SavedRace.model_validate(document)
            found, schema = {"": SavedEntry(name="", result=race)}, race.schema_
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        wrong = f"{place}: {first['msg']}" if place else first["msg"]
        raise UsageError(f"--compare {path} is no result of race --json ({wrong}); give another file") from error
    except ValueError as error:
        raise UsageError(f"--compare {path} is no result of race --json ({error}); give another file") from error
    if schema != SCHEMA:
        raise UsageError(f"--compare {path} has schema {schema}, this version reads {SCHEMA}; race again with --json")
    return found
