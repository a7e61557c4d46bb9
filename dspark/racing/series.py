"""The races of a suite so far: results, failures, and what was not reached."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dspark.racing.result import RaceResult

State = Literal["done", "failed", "not run"]


@dataclass(frozen=True)
class Entry:
    """One race of a suite: its result, or why there is none (None: its turn did not come)."""

    name: str
    result: RaceResult | None = None
    error: str | None = None

    @property
    def state(self) -> State:
        if self.result is not None:
            return "done"
        return "not run" if self.error is None else "failed"


@dataclass(frozen=True)
class Series:
    """All races of one suite, in order."""

    command: str
    date: datetime.datetime
    entries: Sequence[Entry]
    interrupted: bool = False

    @property
    def results(self) -> list[RaceResult]:
        return [entry.result for entry in self.entries if entry.result is not None]
