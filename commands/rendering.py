"""What the commands share for writing to a terminal: two consoles, one table, plain JSON.

Results go to stdout, everything said beside them to stderr. Colour, width and box characters follow the terminal:
NO_COLOR, COLUMNS, a pipe and a C locale are honoured, and no character can raise an encoding error.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 100  # columns where nothing tells the width


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
    """Print one line as it is, however wide: commands to paste, paths."""
    console.print(line, style=style, soft_wrap=True, markup=False, highlight=False, emoji=False)


def print_json(value: Any) -> None:
    """Print `value` as the only thing on stdout: ASCII, indented, refusing NaN and infinity."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def draws_unicode() -> bool:
    """Whether stdout takes characters beyond ASCII, and the locale does not say that the terminal cannot show them."""
    # Under LANG=C Python writes UTF-8 and sets LC_CTYPE itself: only the other two tell what the user has.
    locale = os.environ.get("LC_ALL") or os.environ.get("LANG") or ""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return encoding == "utf8" and locale not in ("C", "POSIX")


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    told = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(file=stream, width=None if told else PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def _ascii_rule() -> Any:
    from rich.box import Box

    blank = "    \n"
    return Box(blank + blank + " -- \n" + blank + blank + " -- \n" + blank + blank, ascii=True)
