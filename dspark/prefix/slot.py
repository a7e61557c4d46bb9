"""One conversation kept: its tokens, and the caches that hold them."""

from dataclasses import dataclass, field
from pathlib import Path

from dspark.drafters.drafter import DrafterContext, Forkable
from dspark.prefix.sizes import context_bytes
from dspark.sequences import common_prefix
from dspark.targets.caches import TargetCache

# Two prompts that part this close to where a conversation's prompt ended belong to the same conversation: templates
# render the end of a prompt otherwise once an answer follows it.
SLACK_TOKENS = 64
# Checkpoints kept of a conversation beside its rungs: the first, which its neighbours share, and the newest.
_NEWEST_CHECKPOINTS = 3


@dataclass(eq=False)
class Slot:
    """`tokens` are exactly those that `cache` holds; `context` is the drafter's, which may hold fewer of them.

    `stable` is how much of the last prompt will be rendered the same next time. `path` is the file that holds the first
    `written` of its tokens.
    """

    tokens: list[int]
    cache: TargetCache
    context: DrafterContext | None
    stable: int
    path: Path | None = None
    written: int = 0
    used: int = 0
    nbytes: int = field(init=False, default=0)
    checkpoints: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.measure()

    def measure(self) -> None:
        """Take its size anew."""
        self.nbytes = self.cache.nbytes + context_bytes(self.context)
        self.checkpoints = len(self.cache.checkpoints)

    def usable(self, prompt: list[int], *, drafted: bool) -> tuple[int, int]:
        """Tokens of `prompt` that are the same here, and those of them that need not be read again."""
        shared = common_prefix(self.tokens, prompt)
        # The last token is fed in any case: its logits choose the first of the answer.
        limit = min(shared, len(prompt) - 1)
        if drafted:
            limit = min(limit, self.context.length if self.context is not None else 0)
        return shared, self.cache.reach(limit)

    def continues(self, shared: int) -> bool:
        """Whether a prompt that agrees for `shared` tokens goes on with this conversation."""
        return self.stable - shared <= SLACK_TOKENS

    @property
    def unwritten(self) -> int:
        """Tokens that are in no file."""
        return len(self.tokens) - self.written

    @property
    def shareable(self) -> bool:
        """Whether its beginning can be given away while it stays."""
        return self.context is None or isinstance(self.context, Forkable)

    def cut(self, length: int) -> "Slot":
        """Itself, with the first `length` tokens only."""
        self.cache.truncate(length)
        if self.context is not None:
            self.context.truncate(length)
        del self.tokens[length:]
        self.written = min(self.written, length)
        return self

    def fork(self, length: int) -> "Slot":
        """Another conversation with the same first `length` tokens."""
        context = self.context.fork(length) if isinstance(self.context, Forkable) else None
        return Slot(self.tokens[:length], self.cache.fork(length), context, self.stable)

    def thin(self) -> None:
        """Let go of checkpoints that later prompts will hardly part at."""
        others = [one.length for one in self.cache.checkpoints if one.reason != "rung"]
        kept = {*others[:1], *others[-_NEWEST_CHECKPOINTS:]}
        self.cache.thin(lambda one: one.reason == "rung" or one.length in kept)
        self.measure()

    def strip(self) -> int:
        """Let go of all checkpoints but the newest; returns the bytes that came back."""
        before = self.nbytes
        newest = max((one.length for one in self.cache.checkpoints), default=0)
        self.cache.thin(lambda one: one.length == newest)
        self.measure()
        return before - self.nbytes

    def replaces(self, other: "Slot") -> bool:
        """Whether `other` has nothing that is not here."""
        drafted = other.context is not None
        _, usable = self.usable([*other.tokens, -1], drafted=drafted)
        return usable >= len(other.tokens) - SLACK_TOKENS and usable > 0
