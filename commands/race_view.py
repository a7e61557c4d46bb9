"""How a race looks while it runs: one lane an arm on a terminal, a line a trial elsewhere.

An event leaves two or three assignments behind, and the drawing happens in rich's own thread a few times a second: the
arms are on the clock while they are watched, and every arm pays the same share of its time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dspark.commands.rendering import draws, print_lines, stderr_console, table, table_width

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console, Group

    from dspark.racing.arms import Entrant
    from dspark.racing.runner import Progress

DRAWINGS_PER_SECOND = 4
EDGES = 4  # columns of a table's margins
TAIL = 400  # characters of an answer that are kept for its lane


class View(Protocol):
    """A context manager that is shown what happens."""

    def __enter__(self) -> View: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def show(self, progress: Progress) -> None: ...


def view(entrants: Sequence[Entrant]) -> View:
    """The live view where stderr is a terminal that can be drawn on, otherwise the quiet one."""
    console = stderr_console()
    return LiveView(console, entrants) if draws(console) else QuietView(console)


class QuietView:
    """One line at the start of each trial, one for each arm that fails."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._announced = 0

    def __enter__(self) -> QuietView:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def show(self, progress: Progress) -> None:
        from dspark.racing.runner import Failed, Started

        if isinstance(progress, Failed):
            print_lines(self._console, f"{progress.arm} failed: {progress.message}")
        elif isinstance(progress, Started) and progress.slot.number == self._announced:
            self._announced += 1
            print_lines(self._console, f"trial {self._announced}: answer {progress.index + 1} of {progress.total}")


@dataclass
class Lane:
    """What is known of one arm: the answer it is giving, or the last it gave."""

    label: str
    state: str = "waiting"
    text: str = ""
    tokens: int = 0
    begun: float = 0.0
    rounds: int = 0
    settled: int = 0
    rate: float | None = None

    def begin(self) -> None:
        self.state, self.text, self.tokens, self.rounds, self.settled, self.rate = "running", "", 0, 0, 0, None
        self.begun = time.perf_counter()

    @property
    def cells(self) -> tuple[str, str, str]:
        """Arm, tok/s end-to-end so far, tokens a round so far."""
        rate = self.rate
        if rate is None and self.state == "running" and self.tokens:
            rate = self.tokens / max(time.perf_counter() - self.begun, 1e-9)
        per_round = f"{self.settled / self.rounds:.2f}" if self.rounds else "-"
        return self.label, "-" if rate is None else f"{rate:.1f}", per_round


class LiveView:
    """Lanes drawn over each other on stderr, gone when the race is over."""

    def __init__(self, console: Console, entrants: Sequence[Entrant]) -> None:
        from rich.live import Live

        self._console = console
        self._lanes = {entrant.label: Lane(entrant.label) for entrant in entrants}
        self._headline = "warming up"
        self._live = Live(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=DRAWINGS_PER_SECOND,
            transient=True,
            vertical_overflow="crop",
        )

    def __enter__(self) -> LiveView:
        try:
            self._live.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):  # the terminal may have left
            try:
                self._live.stop()
            finally:  # whatever ended the display half way
                self._console.show_cursor(True)

    def show(self, progress: Progress) -> None:
        from dspark.decoding.events import RoundCommitted, Text
        from dspark.racing.runner import Ended, Failed, Heard, Started, WarmingUp

        match progress:
            case Heard(arm, RoundCommitted() as committed):
                lane = self._lanes[arm]
                lane.tokens += len(committed.tokens)
                lane.rounds += 1
                lane.settled += committed.accepted + 1
            case Heard(arm, Text(text)):
                lane = self._lanes[arm]
                lane.text = (lane.text + text)[-TAIL:]
            case Started(_, arm, index, total):
                self._headline = f"answer {index + 1} of {total}"
                self._lanes[arm].begin()
            case Ended(trial):
                lane = self._lanes[trial.arm]
                lane.state, lane.rate = "waiting", trial.tokens_per_second
            case WarmingUp(arm):
                self._headline = f"warming up {arm}"
            case Failed(arm, message):
                self._lanes[arm].state = "failed"
                self._lanes[arm].text = message

    def _draw(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        head = ("arm", "tok/s", "tok/round", "answer")
        rows = [(folded(lane.label), *lane.cells[1:], "") for lane in self._lanes.values()]
        if table_width(head, rows, (False, True, True, False)) + EDGES > self._console.width:
            lanes = (lane.cells for lane in self._lanes.values())
            return Group(Text(self._headline), *(Text(f"{arm}: {rate}, {rounds}/round") for arm, rate, rounds in lanes))
        drawn = table(*head, numeric=head[1:3])
        room = max(self._console.width - 44, 12)
        for lane in self._lanes.values():
            label, *figures = lane.cells
            style = "bold" if lane.state == "running" else "dim"
            drawn.add_row(folded(label), *figures, _tail(lane.text, room), style=style)
        return Group(Text(self._headline), drawn)


def folded(label: str) -> str:
    """An arm's label for a narrow column, broken between its settings."""
    return label.replace(",", ",\n")


def _tail(text: str, room: int) -> str:
    """The last `room` characters, on one line and without control characters, which could steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)[-room:]
