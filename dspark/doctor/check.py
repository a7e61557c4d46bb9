"""One verdict of the doctor's, and the subjects that verdicts are about."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """`seen` is what was found, `todo` what to do about it, `command` a shell line that does it, ready to paste.

    `checked` is when, in UTC (ISO 8601); None until the check has become part of a report.
    """

    id: str
    title: str
    status: Status
    seen: str
    todo: str | None
    command: str | None
    checked: str | None


@dataclass(frozen=True)
class Subject:
    """What a check is about. `id` is for programs and stays, `title` is for people."""

    id: str
    title: str

    def ok(self, seen: str) -> Check:
        return Check(self.id, self.title, "ok", seen, None, None, None)

    def warn(self, seen: str, todo: str, command: str | None = None) -> Check:
        """Works, but worse than it could, or soon not."""
        return Check(self.id, self.title, "warn", seen, todo, command, None)

    def fail(self, seen: str, todo: str, command: str | None = None) -> Check:
        """Broken: something that this tool is for does not work."""
        return Check(self.id, self.title, "fail", seen, todo, command, None)
