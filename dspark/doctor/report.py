"""The doctor's report: the same for the terminal, for `--json` and for the server."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from dspark.doctor.check import Check
from dspark.doctor.pairs import PairState

OTHER_HOMES = re.compile(r"/(Users|home)/[^/\s:]+")


@dataclass(frozen=True)
class Report:
    """`ok` is false when something must be mended before the tool can work; `date` is in UTC.

    `models` are the registry's pairs with how each fits this machine and what of it is on disk, largest first.
    """

    ok: bool
    version: str
    date: str
    checks: tuple[Check, ...]
    models: tuple[PairState, ...]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, as doctor.schema.json describes it."""
        return asdict(self)

    def redacted(self, homes: Iterable[str], names: Iterable[str]) -> "Report":
        """The same without home folders and without `names` (of the user, of the host), for a public bug report."""
        clean = _Redaction(homes, names)
        return replace(
            self,
            checks=tuple(
                replace(check, seen=clean(check.seen), todo=clean.maybe(check.todo), command=clean.maybe(check.command))
                for check in self.checks
            ),
            models=tuple(
                replace(
                    pair,
                    targets=tuple(map(clean, pair.targets)),
                    drafters=tuple(map(clean, pair.drafters)),
                    too_large=tuple(map(clean, pair.too_large)),
                )
                for pair in self.models
            ),
        )


class _Redaction:
    """Longest first, so that what contains another is gone whole; in both ways of writing an accented letter."""

    def __init__(self, homes: Iterable[str], names: Iterable[str]) -> None:
        self._homes = _spellings(home.rstrip("/") for home in homes)
        self._names = _spellings(names)

    def __call__(self, text: str) -> str:
        for home in self._homes:
            text = re.sub(re.escape(home) + r"(?![\w.-])", "~", text)
        text = OTHER_HOMES.sub("~", text)
        for name in self._names:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "redacted", text, flags=re.IGNORECASE)
        return text

    def maybe(self, text: str | None) -> str | None:
        return None if text is None else self(text)


def _spellings(words: Iterable[str]) -> list[str]:
    forms = {unicodedata.normalize(form, word) for word in words for form in ("NFC", "NFD") if word}
    return sorted(forms, key=len, reverse=True)
