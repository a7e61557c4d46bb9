"""What one generation has in hand: caches that nobody else holds, and where to leave checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dspark.drafters.drafter import DrafterContext
from dspark.targets.caches import Reason, TargetCache


@dataclass(frozen=True)
class Lease:
    """`cache` None: start from nothing. `context` is the drafter's, `aside` one that this generation does not extend.

    `cuts` are lengths at which to leave a checkpoint while the prompt is read; behind it one is left every
    `rung_tokens` (0: none). `stable` is how much of the prompt will come back, `path` the file that holds the first
    `written` tokens of this conversation.
    """

    cache: TargetCache | None = None
    context: DrafterContext | None = None
    aside: DrafterContext | None = None
    cuts: Mapping[int, Reason] = field(default_factory=dict)
    rung_tokens: int = 0
    stable: int = 0
    path: Path | None = None
    written: int = 0

    def next_cut(self, at: int, most: int) -> int:
        """Where a chunk that begins at `at` must end, `most` at the latest."""
        return min((cut for cut in self.cuts if at < cut < most), default=most)

    def mark(self, cache: TargetCache) -> None:
        """Leave a checkpoint, if this is a place for one."""
        if (reason := self.cuts.get(cache.length)) is not None:
            cache.checkpoint(reason)
        elif self.rung_tokens:
            newest = cache.checkpoints[-1].length if cache.checkpoints else 0
            if cache.length - newest >= self.rung_tokens:
                cache.checkpoint("rung")
