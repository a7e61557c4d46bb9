"""Where a result goes beside the terminal: files or stdout, in JSON, Markdown and CSV."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dspark.commands.rendering import print_lines, print_verbatim, stderr_console, stdout_console
from dspark.errors import StorageError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

STDOUT = "-"
ITS_NAMES = (STDOUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")  # opened, they would be written over by the tables

Format = Literal["json", "markdown", "csv"]
Texts = Mapping[Format, Callable[[], str]]


@dataclass(frozen=True)
class Outputs:
    """A file for each format that is wanted; `-` is stdout."""

    json: str | None = None
    markdown: str | None = None
    csv: str | None = None

    def _wanted(self) -> Iterator[tuple[Format, str]]:
        for name, target in (("json", self.json), ("markdown", self.markdown), ("csv", self.csv)):
            if target is not None:
                yield name, STDOUT if target in ITS_NAMES else target  # type: ignore[misc]

    def check(self) -> None:
        """Find out before the race whether its result can be written after it. Raises UsageError."""
        seen: dict[str, str] = {}
        for name, target in self._wanted():
            place = STDOUT
            if target != STDOUT:
                try:
                    _try_to_write(target)
                    place = os.path.realpath(target)
                except (OSError, ValueError) as error:
                    wrong = getattr(error, "strerror", None) or error
                    raise UsageError(f"--{name} {target!r} cannot be written ({wrong}); give another file") from error
            if place in seen:
                both = f"--{seen[place]} and --{name}"
                if place == STDOUT:
                    both = f"--{seen[place]} - and --{name} -"
                    raise UsageError(f"{both} both want stdout; give one of them a file")
                raise UsageError(f"{both} name the same file; give each its own")
            seen[place] = name

    def write_files(self, texts: Texts) -> list[str]:
        """Write those that are files; what went wrong, a line each."""
        from dspark.racing.export import write

        failed = []
        for name, target in self._wanted():
            if target != STDOUT:
                try:
                    write(texts[name](), Path(target))
                except StorageError as error:
                    failed.append(str(error))
        return failed

    def publish(self, texts: Texts, show: Callable[[Console], None]) -> bool:
        """Write the exports and `show` the tables; False where a file could not be written, which is said last.

        Files come first: nothing that befalls a terminal or a pipe can lose them. A stdout that an export takes is
        left to it; the tables go to stderr.
        """
        failed = self.write_files(texts)
        try:
            taken = [name for name, target in self._wanted() if target == STDOUT]
            show(stderr_console() if taken else stdout_console())
            for name in taken:
                text = texts[name]()
                if name == "markdown":
                    console = stdout_console()
                    for line in text.rstrip("\n").split("\n"):
                        print_verbatim(console, line)
                else:
                    sys.stdout.write(text)
        finally:
            for message in failed:
                print_lines(stderr_console(), f"mlx-dspark: {message}", style="red")
        return not failed


def _try_to_write(target: str) -> None:
    """Raise the error that writing to `target` would raise; leaves nothing behind."""
    if target.endswith(tuple(filter(None, (os.sep, os.altsep)))):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    path = Path(target)
    there = path.exists()
    if there and not path.is_dir() and not path.is_file():
        return  # a pipe or a device: opening it is felt at the other end
    with path.open("ab"):
        pass
    if not there:
        path.resolve().unlink()  # what a link points to, not the link
