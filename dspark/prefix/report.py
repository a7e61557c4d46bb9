"""What the prefix cache did, for people who ask why a turn was slow."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["hit", "partial", "miss"]
Mode = Literal["trim", "checkpoint", "off"]


@dataclass(frozen=True)
class Visit:
    """One prompt against what was kept.

    `shared_tokens` is how much of it agrees with the nearest conversation kept: there it diverged. `cached_tokens` were
    not read again; they are fewer where the nearest checkpoint lies farther back. A hit continued a conversation, a
    partial one shared its beginning, a miss read everything.
    """

    outcome: Outcome
    prompt_tokens: int
    shared_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class DiskReport:
    """The second tier. `ignored` files were damaged or of another model; `errors` counts failed reads and writes."""

    folder: str
    entries: int
    bytes: int
    limit_bytes: int
    written: int
    read: int
    errors: int
    ignored: int
    skipped: int
    last_error: str | None


@dataclass(frozen=True)
class PrefixReport:
    """`mode` says how a conversation is cut short: anywhere (trim), at checkpoints, or not at all, and `reason` why.

    `reused_tokens` and `read_tokens` are sums over prompts; `dropped` slots were lost to an error of their decoding.
    """

    mode: Mode
    reason: str | None
    slots: int
    slot_limit: int
    bytes: int
    limit_bytes: int
    tokens: int
    checkpoints: int
    hits: int
    partials: int
    misses: int
    reused_tokens: int
    read_tokens: int
    evicted: int
    dropped: int
    last: Visit | None
    disk: DiskReport | None
