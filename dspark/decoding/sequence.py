"""One request while it is decoded: its tokens, caches, stop rule and counts."""

from dspark.decoding.constraint import Constraint
from dspark.decoding.events import TokenLogprob
from dspark.decoding.lookup import LookupIndex
from dspark.decoding.stopping import StopRule
from dspark.decoding.tally import Tally
from dspark.drafters.drafter import DrafterContext
from dspark.targets.caches import TargetCache


class Sequence:
    """State of one generation.

    Between rounds the target's cache and the drafter's context hold the same tokens: everything but the anchor, the
    newest token, which the next round feeds. Tokens enter the caches only after the target chose them.
    """

    def __init__(
        self,
        prompt: list[int],
        cache: TargetCache,
        context: DrafterContext | None,
        stop: StopRule,
        constraint: Constraint | None = None,
    ) -> None:
        self.prompt = prompt
        self.cache = cache
        self.context = context
        self.stop = stop
        self.constraint = constraint
        self.tally = Tally(len(prompt))
        self.index: LookupIndex | None = None
        self.anchor = prompt[-1]
        self.logprobs: list[TokenLogprob] = []

    def resume(self, cache: TargetCache, context: DrafterContext | None) -> None:
        """Begin with caches that hold the first tokens of the prompt already."""
        self.cache, self.context = cache, context
        self.tally.cached_tokens = cache.length

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer so far."""
        return self.prompt + self.stop.tokens

    @property
    def length(self) -> int:
        """Number of `tokens`."""
        return len(self.prompt) + len(self.stop.tokens)

    def recent(self, count: int) -> list[int]:
        """The newest `count` tokens, or all there are."""
        answer = self.stop.tokens[-count:]
        missing = count - len(answer)
        return (self.prompt[-missing:] if missing else []) + answer

    @property
    def record(self) -> list[int]:
        """The tokens that the caches hold, in order."""
        return self.tokens[: self.cache.length]

    def retain(self, length: int) -> None:
        """Cut both caches down to the first `length` tokens; to none where the target's cannot go back that far."""
        self.cache.truncate(length)
        if self.context is not None:
            self.context.truncate(self.cache.length)
