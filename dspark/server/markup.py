"""What is structure in the text of a model family, and where one piece of it leads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from dspark.server.toolcalls import ToolFormat

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

# fresh: nothing was said since the start of the answer, a thought or a call. drafted: so far a thought ends in a call.
# header: between the messages that some families write within one answer.
State = Literal["fresh", "content", "reasoning", "drafted", "call", "header"]
Edge = tuple[str, State]
_STATES: Mapping[str, State] = {"normal": "fresh", "reasoning": "reasoning", "tool": "call", "header": "header"}


@dataclass(frozen=True)
class Markup:
    """For each state the markers that end it, each with the state after it. An answer begins in `start`."""

    edges: Mapping[State, tuple[Edge, ...]]
    tools: ToolFormat | None = None
    start: State = "fresh"

    @classmethod
    def of(cls, tokenizer: "TokenizerWrapper", tools: ToolFormat | None) -> Self:
        """The markup of a model as mlx-lm knows it; without `tools` calls are text."""
        edges: dict[State, list[Edge]] = {name: [] for name in ("fresh", "content", "reasoning", "drafted", "header")}
        if tokenizer.think_start and tokenizer.think_end:
            edges["fresh"] += [(tokenizer.think_start, "reasoning"), (tokenizer.think_end, "fresh")]
            edges["reasoning"].append((tokenizer.think_end, "fresh"))
        for marker in tokenizer.structural_markers:
            edges["fresh"].append((marker, "fresh"))
            edges["content"].append((marker, "content"))
        for source, targets in tokenizer.response_transitions.items():
            for name in ("fresh", "content") if source == "normal" else (_STATES[source],):
                edges[name] += [(marker, _STATES[target]) for marker, target in targets if target != "tool"]
        edges["drafted"] += edges["reasoning"]
        if tools is not None:
            for each in edges.values():
                each.append((tools.start, "call"))
        start = _STATES[tokenizer.response_initial_state or "normal"]
        return cls({name: tuple(each) for name, each in edges.items()}, tools, start)

    @classmethod
    def none(cls) -> Self:
        """Nothing is structure: all text is content."""
        return cls({"content": ()}, start="content")


def first(text: str, edges: tuple[Edge, ...]) -> tuple[int, Edge] | None:
    """The first marker in `text` and where it stands; of several at one place the longest."""
    found = [(text.find(edge[0]), edge) for edge in edges]
    return min(((at, edge) for at, edge in found if at >= 0), key=lambda hit: (hit[0], -len(hit[1][0])), default=None)


def unsettled(text: str, markers: tuple[str, ...]) -> int:
    """How many characters at the end of `text` may be the beginning of a marker."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[len(text) - length :]
        if any(marker.startswith(tail) and marker != tail for marker in markers):
            return length
    return 0
