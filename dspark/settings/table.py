"""The table of settings: one line each, and everything else is made from it.

Flags with their help, `MLX_DSPARK_*` variables, the sections of the settings file and what `--show-config` prints all
come from here. A setting is a field of a section; its name is unique among all sections, its flag is the name with
dashes, its variable the name in capitals.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from dspark.settings.kinds import ApiKey, Choice, Kind, Listed, Number, Switch, Text, Whole, WholeOrAuto

__all__ = [
    "SECTIONS",
    "SETTINGS",
    "Cache",
    "Generation",
    "Memory",
    "Model",
    "Origin",
    "Server",
    "Setting",
    "Speculation",
]

Origin = Literal["flag", "variable", "file", "default"]
Cap = int | Literal["auto"]
T = TypeVar("T")
D = TypeVar("D")
_GIVEN: tuple[Origin, ...] = ("flag", "variable", "file")


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    `sources` are where it may be given. A `pairwise` one belongs to the model that it is given with. A `secret` is not
    shown.
    """

    section: str
    name: str
    kind: Kind[Any]
    default: Any
    help: str
    sources: tuple[Origin, ...] = _GIVEN
    pairwise: bool = False
    secret: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "MLX_DSPARK_" + self.name.upper()

    @property
    def key(self) -> str:
        """Its place in the settings file."""
        return f"{self.section}.{self.name}"


def _setting(
    kind: Kind[T],
    default: D,
    help: str,  # noqa: A002
    *,
    sources: tuple[Origin, ...] = _GIVEN,
    pairwise: bool = False,
    secret: bool = False,
) -> T | D:
    row = {"kind": kind, "help": help, "sources": sources, "pairwise": pairwise, "secret": secret}
    made: T | D = field(default=default, metadata=row)
    return made


@dataclass(frozen=True)
class Model:
    """What to load, and how."""

    model: str = _setting(Text("MODEL"), "demo", "Target: id, repo id or folder.")
    drafter: str | None = _setting(
        Text("MODEL"),
        None,
        "Drafter: id, repo id, folder, or none. Default: the registry's for the target.",
        pairwise=True,
    )
    mode: str = _setting(
        Choice("auto", "baseline", "lookup", "dspark", "dflash"),
        "auto",
        "auto, baseline, lookup, dspark or dflash; auto: the best that the pair supports.",
        pairwise=True,
    )
    precision: str | None = _setting(
        Choice("fp32", "bf16", "q4"),
        None,
        "Demo pair only: fp32, bf16 or q4. Default: what runs fastest here.",
        pairwise=True,
    )
    kv_bits: int = _setting(Whole(among=(0, 4, 8)), 0, "Quantize the KV cache to 4 or 8 bits; 0: not at all.")
    drafter_bits: Cap = _setting(
        WholeOrAuto(Whole(among=(2, 3, 4, 5, 6, 8, 16))),
        "auto",
        "Bits of the drafter's projections: 2 to 8, 16 for none; auto: what suits here.",
    )
    drafter_window: Cap = _setting(
        WholeOrAuto(Whole(0)), "auto", "Tokens the drafter looks back; 0 for all; auto: as trained, or 4096."
    )
    sdpa_split: bool | None = _setting(
        Switch(),
        None,
        "Read wide verify passes in chunks, where a trial finds that faster. Default: on Metal only.",
    )
    profile: str | None = _setting(
        Text("FILE"),
        None,
        "Calibration profile to go by, or none. Default: what calibrate left for this pair.",
        pairwise=True,
    )
    warmup: bool = _setting(Switch(), True, "Run a short generation after loading.")
    # Not from the file: there, the trust given to one checkpoint would quietly cover every later one.
    trust_remote_code: bool = _setting(
        Switch(), False, "Allow a checkpoint that runs Python of its own.", sources=("flag", "variable")
    )


@dataclass(frozen=True)
class Speculation:
    """How to speculate where a request or an arm does not say."""

    max_draft: Cap | None = _setting(
        WholeOrAuto(Whole(0, 999_999)),
        None,
        "Most proposals a round, or auto; 0 drafts nothing, in any mode. Default: the pair's.",
        pairwise=True,
    )
    lookup_drafts: bool | None = _setting(
        Switch(), None, "Also propose continuations found in the context. Default: the pair's.", pairwise=True
    )
    confidence_threshold: float | None = _setting(
        Number(0, 1),
        None,
        "Stop a draft where the chance that all of it survives falls below X; 0: never. Default: the pair's.",
        pairwise=True,
    )


@dataclass(frozen=True)
class Generation:
    """What a request gets that does not say."""

    default_temperature: float | None = _setting(Number(0, 2), None, "Default: the model's own, or greedy.")
    default_top_p: float | None = _setting(Number(0, 1, above=True), None, "Default: the model's own, or off.")
    default_top_k: int | None = _setting(Whole(0), None, "0 is off. Default: the model's own, or off.")
    default_max_tokens: int = _setting(Whole(1), 2048, "Longest answer, in tokens.")
    max_tokens_cap: int = _setting(Whole(1), 32768, "The most that a request may ask for.")
    enable_thinking: bool | None = _setting(Switch(), None, "Think before answering. Default: the model's own.")
    reasoning_effort: str | None = _setting(
        Choice("low", "medium", "high", "xhigh"), None, "low, medium, high or xhigh. Default: the model's own."
    )


@dataclass(frozen=True)
class Server:
    """Where the server listens, and to whom it answers."""

    host: str = _setting(Text("HOST"), "127.0.0.1", "Address to listen on; one that others reach needs a key.")
    port: int = _setting(Whole(0, 65535), 8080, "Port to listen on; 0: any that is free.")
    api_key: str | None = _setting(
        ApiKey(), None, "The server's key; other users of this machine may see it: prefer a file.", secret=True
    )
    api_key_file: str | None = _setting(Text("FILE"), None, "A file that holds the key on its first line.")
    allow_unauthenticated_inference: bool = _setting(
        Switch(), False, "Answer generation routes without a key.", sources=("file",)
    )
    cors_origins: tuple[str, ...] = _setting(Listed(), (), "Origins of browsers that may ask.", sources=("file",))
    server_aliases: tuple[str, ...] = _setting(Listed(), (), "Host names that this server has.", sources=("file",))


@dataclass(frozen=True)
class Memory:
    """How much of the machine's memory a model may take."""

    context_window: int = _setting(
        Whole(0), 0, "Longest prompt and answer together, in tokens; 0: what the model was made for.", pairwise=True
    )
    memory_guard: bool = _setting(Switch(), True, "Refuse prompts that would not fit, give back memory under pressure.")


@dataclass(frozen=True)
class Cache:
    """What is remembered of the prompts that were read."""

    prefix_cache: bool = _setting(Switch(), True, "Keep what was read: the next turn reads only what is new.")
    prefix_cache_slots: int = _setting(Whole(1), 8, "The most conversations kept.")
    prefix_cache_rungs: int = _setting(
        Whole(0), 8192, "Tokens between checkpoints, where a model's cache cannot be trimmed; 0: none."
    )
    prefix_cache_bytes: Cap = _setting(
        WholeOrAuto(Whole(0)), "auto", "The most memory they take, in bytes; auto: an eighth of what a model may take."
    )
    prefix_cache_dir: str | None = _setting(
        Text("FOLDER"), None, "A folder for what leaves memory, read again after a restart. Default: none."
    )
    prefix_cache_disk_bytes: int = _setting(Whole(1), 20_000_000_000, "The most that folder takes, in bytes.")


SECTIONS: Mapping[str, type[Any]] = {
    "model": Model,
    "speculation": Speculation,
    "generation": Generation,
    "server": Server,
    "memory": Memory,
    "cache": Cache,
}
SETTINGS: Mapping[str, Setting] = {
    row.name: Setting(section, row.name, default=row.default, **row.metadata)
    for section, kinds in SECTIONS.items()
    for row in fields(kinds)
}
