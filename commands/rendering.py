"""What the commands share for writing to a terminal: two consoles, one table, plain JSON.

Results go to stdout, everything said beside them to stderr. Colour, width and box characters follow the terminal:
NO_COLOR, COLUMNS, a pipe and a C locale are honoured, no character can raise an encoding error, and none can steer the
terminal: names and texts out of a checkpoint are a stranger's.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 100  # columns where nothing tells the width
NARROWEST = 20
GAP = 2  # columns between two cells
PIECE = 8  # columns below which a folded word is hard to read
# All controls but the line feed, and what reorders or breaks lines among the format characters.
_STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def stdout_console() -> Console:
    """Where results are printed."""
    return _console(sys.stdout)


def stderr_console() -> Console:
    """Where progress, notices and warnings are printed."""
    return _console(sys.stderr)


def table(*columns: str, title: str | None = None, numeric: tuple[str, ...] = ()) -> Table:
    """A table with a rule under its head; columns named in `numeric` are right-aligned and never broken."""
    from rich import box
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD if draws_unicode() else _ascii_rule())
    for name in columns:
        number = name in numeric
        drawn.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return drawn


def table_width(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> int:
    """Columns that a table takes at least, with numbers whole and words in pieces of `PIECE`."""
    width = GAP * (len(head) - 1)
    for cells, whole in zip(zip(head, *rows, strict=True), numeric, strict=True):
        pieces = [piece for cell in cells for piece in (cell.split("\n") if whole else cell.split())]
        longest = max(map(len, pieces), default=0)
        width += longest if whole else min(longest, PIECE)
    return width


def print_table(
    console: Console, head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Collection[str] = ()
) -> None:
    """A table, or a line a cell where the terminal is too narrow for it: a number cut short is another number."""
    names = [name.replace(" ", "\n", 1) if name in numeric else name for name in head]  # numbers are narrow
    if table_width(names, rows, [name in numeric for name in head]) > console.width:
        for row in rows:
            for name, cell in zip(head, row, strict=True):
                print_lines(console, f"{name}: {' '.join(cell.split())}")
            console.print()
        return
    drawn = table(*names, numeric=tuple(name for name, old in zip(names, head, strict=True) if old in numeric))
    drawn.show_edge, drawn.pad_edge, drawn.collapse_padding = False, False, True
    for row in rows:
        drawn.add_row(*row)
    console.print(drawn)


def print_lines(console: Console, text: str, *, indent: int = 0, hanging: int = 0, style: str | None = None) -> None:
    """Print `text` wrapped at the console's width, `indent` columns in, the lines after the first `hanging` more.

    Long words stay whole, so that paths can be copied.
    """
    first, later = " " * indent, " " * (indent + hanging)
    for paragraph in text.splitlines():
        lines = textwrap.wrap(
            paragraph,
            max(console.width, len(later) + 20),
            initial_indent=first,
            subsequent_indent=later,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines or [""]:
            print_verbatim(console, line, style=style)


def print_verbatim(console: Console, line: str, *, style: str | None = None) -> None:
    """Print one line as it is but for control characters, however wide: commands to paste, paths."""
    console.print(inert(line), style=style, soft_wrap=True, markup=False, highlight=False, emoji=False)


def print_json(value: Any) -> None:
    """Print `value` as the only thing on stdout: ASCII, indented, refusing NaN and infinity."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def draws_unicode() -> bool:
    """Whether stdout takes characters beyond ASCII, and the locale does not say that the terminal cannot show them."""
    # Under LANG=C Python writes UTF-8 and sets LC_CTYPE itself: only the other two tell what the user has.
    locale = os.environ.get("LC_ALL") or os.environ.get("LANG") or ""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return encoding == "utf8" and locale not in ("C", "POSIX")


def draws(console: Console) -> bool:
    """Whether the stream of `console` is a terminal that can be drawn on."""
    return console.file.isatty() and console.is_terminal and not console.is_dumb_terminal


def inert(text: str) -> str:
    """`text` with a `?` for each character that could steer a terminal, and a space for a tab; line feeds stay."""
    return _STEERING.sub("?", text.replace("\t", " "))


def settle_size() -> None:
    """Take COLUMNS and LINES out of the environment if they are no size that one can write in.

    Every library that draws reads them for itself, and one takes `0` at its word and fails on `²`.
    """
    for variable, least in (("COLUMNS", NARROWEST), ("LINES", 2)):
        value = os.environ.get(variable)
        if value is not None and not (re.fullmatch("[0-9]{1,4}", value) and int(value) >= least):
            del os.environ[variable]


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    class Inert(Console):
        """Strings become text here, those in the cells of tables too. A reader who left is the caller's to notice."""

        def render_str(self, text: str, **settings: Any) -> Any:
            return super().render_str(inert(text), **settings)

        def on_broken_pipe(self) -> None:
            raise  # called while the error is handled

    settle_size()
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    told = stream.isatty() or "COLUMNS" in os.environ
    return Inert(file=stream, width=None if told else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def _ascii_rule() -> Any:
    from rich.box import Box

    blank = "    \n"
    return Box(blank + blank + " -- \n" + blank + blank + " -- \n" + blank + blank, ascii=True)
