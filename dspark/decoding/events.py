"""What a generation tells while it runs. A stream is: PrefillProgress*, (RoundCommitted, Text*)*, Finished."""

from dataclasses import dataclass
from typing import Literal

from dspark.tuning.pilot import Source

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class PrefillProgress:
    """`processed` of `total` prompt tokens are in the cache; the last one of a stream has `done` set."""

    processed: int
    total: int
    done: bool = False


@dataclass(frozen=True)
class TokenLogprob:
    """The target's raw log-probability of an emitted token, and its best tokens there as (id, log-probability)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class RoundCommitted:
    """One round: `drafted` proposals were verified, `accepted` of them kept, `tokens` emitted.

    `tokens` are the ids that reached the text, `context` the length of the target's cache after the round.
    """

    index: int
    source: Source
    drafted: int
    accepted: int
    tokens: tuple[int, ...]
    cap: int
    elapsed_ms: float
    context: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Text:
    """A piece of text that will not change any more. All pieces joined are the whole answer."""

    text: str


@dataclass(frozen=True)
class Statistics:
    """What a generation did. Times in seconds; a figure that cannot be known is None.

    `completion_tokens` counts what reached the text, the end-of-sequence token not among them. Prefill runs to the
    first token of the answer; decode is everything after it. `accepted_at[k]` of `offered_at[k]` proposals at draft
    position k were accepted, counting only positions that were really tested (every earlier one accepted). `rounds`
    counts rounds after the first token, `emitted` the tokens they settled including an end-of-sequence token.
    `decay_ratio` is the speed over the last third of rounds by that over the first third (None with too few to tell),
    `swap_delta_bytes` what went to swap meanwhile, `cold` whether this was the first generation after a load.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_seconds: float
    decode_seconds: float
    total_seconds: float
    target_forwards: int
    rounds: int
    drafter_rounds: int
    lookup_rounds: int
    plain_rounds: int
    drafted: int
    accepted: int
    emitted: int
    offered_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    decay_ratio: float | None = None
    swap_delta_bytes: int | None = None
    cold: bool | None = None

    @property
    def accept_len(self) -> float | None:
        """Tokens settled a round, the first token of the answer not counted."""
        return self.emitted / self.rounds if self.rounds else None

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Rate after the first token; None with fewer than two tokens."""
        return self.emitted / self.decode_seconds if self.emitted and self.decode_seconds > 0 else None

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Rate over the tokens that were really read; None where there is too little to rate (under 16)."""
        new = self.prompt_tokens - self.cached_tokens
        return new / self.prefill_seconds if new >= 16 and self.prefill_seconds > 0 else None


@dataclass(frozen=True)
class Finished:
    """The last event. `tokens` are the ids of the answer (no end-of-sequence id), `text` all of it.

    `logprobs` has one entry a token where the request asked for them, as has `RoundCommitted`; `stop_string` is the one
    that ended the answer, where one did.
    """

    reason: FinishReason
    tokens: tuple[int, ...]
    text: str
    statistics: Statistics
    logprobs: tuple[TokenLogprob, ...] = ()
    stop_string: str | None = None


Event = PrefillProgress | RoundCommitted | Text | Finished
