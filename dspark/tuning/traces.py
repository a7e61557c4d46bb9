"""A recorded answer with what could have been proposed at each of its tokens: the stuff policies are compared on."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One token of an answer, seen as the anchor of a round.

    `drafted` proposals of a full draft would be accepted, `confidences` are the head's for them (None without a head).
    The newest `suffix` tokens occurred before; `offered` tokens are proposed from there, `matched` would be accepted.
    """

    drafted: int = 0
    confidences: tuple[float, ...] | None = None
    suffix: int = 0
    offered: int = 0
    matched: int = 0


@dataclass(frozen=True)
class Trace:
    """One answer. `places[i]` may begin a round; accepting n there settles n + 1 tokens."""

    klass: str
    prompt_tokens: int
    places: tuple[Place, ...]


def by_class(traces: Iterable[Trace]) -> dict[str, list[Trace]]:
    """The traces of each class, classes in the order of their first."""
    found: dict[str, list[Trace]] = {}
    for trace in traces:
        found.setdefault(trace.klass, []).append(trace)
    return found


def tested(tokens: int, accepted: int) -> Iterator[tuple[int, bool]]:
    """The positions of a draft of `tokens` that were really tested, and whether each was among the `accepted`."""
    for k in range(min(tokens, accepted + 1)):
        yield k, k < accepted
