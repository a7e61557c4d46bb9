"""Room on the volume that a folder lies on."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dspark.machine import shell

# GNU's df, first on the path of many a Mac, has other columns. A tool of its own can be given up on, unlike a system
# call that waits for a network volume.
DF = ("/bin/df", "-P", "-k")
UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


@dataclass(frozen=True)
class Volume:
    """`free_bytes` is what an ordinary user can still write; on APFS all volumes of a container share it."""

    mount: str
    free_bytes: int


def volume(folder: Path, output: Callable[..., str | None] = shell.output) -> Volume | None:
    """The volume of an existing folder; None where df does not tell."""
    volumes = read_df(output(*DF, str(folder)) or "")
    return volumes[0] if len(volumes) == 1 else None


def read_df(text: str) -> list[Volume]:
    """The lines of `df`, by blocks or with units, with inode columns or without; mount points may contain blanks."""
    head, *lines = text.splitlines() or [""]
    block = re.search(r"\b(\d+)-blocks", head)
    scale = int(block.group(1)) if block else 1024
    size = r"(\d[\d.]*[BKMGTP]?i?)"
    row = re.compile(rf"^.+?\s+{size}\s+{size}\s+{size}\s+\d+%\s+(?:\S+\s+\S+\s+(?:\d+%|-)\s+)?(/.*?)\s*$")
    found = [match for match in map(row.match, lines) if match]
    return [Volume(match.group(4), _bytes(match.group(3), scale)) for match in found]


def _bytes(size: str, scale: int) -> int:
    number, unit, _ = re.fullmatch(r"([\d.]+)([BKMGTP]?)(i?)", size).groups()  # type: ignore[union-attr]
    return int(float(number) * (UNITS[unit] if unit else scale))
