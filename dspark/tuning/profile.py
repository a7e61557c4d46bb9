"""A calibration profile: what `mlx-dspark calibrate` found, as YAML that people can read and the engine goes by."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dspark.errors import ProfileError
from dspark.machine.bandwidth import Bandwidth
from dspark.tuning.acceptance import Count, Prior
from dspark.tuning.costs import CostModel, Depth, Host, points
from dspark.tuning.curves import Curves
from dspark.tuning.decision import OVERALL, PLAIN_SETTING, Choice, Decision, Setting
from dspark.tuning.key import Key

SCHEMA = 1
MOST_BYTES = 256 * 1024
HEAD = """\
# Calibration of one pair on one machine, written by `mlx-dspark calibrate`.
# Read at load by every command. Do not edit: calibrate again, or delete it to fall back to a quick look at load.
"""
NOTES = {
    "key": "what this belongs to; where any of it differs, the profile is not used",
    "measured": "when and how; disturbances mark a profile that the next calibration replaces",
    "curves": "milliseconds: verify by rows, draft by proposals, at each depth of context; spread is relative",
    "acceptance": "accepted / offered over recorded answers: by tenth of confidence, draft position, match length",
    "derived": "the settings that win; cap 0 means plain decoding, speedup is against it (low: a standard error less)",
}

# Far beyond what any machine takes, and far from where sums and quotients overflow.
DrafterBits = Literal[2, 3, 4, 5, 6, 8, 16]
Positive = Annotated[float, Field(gt=1e-9, lt=1e12)]
Share = Annotated[float, Field(ge=0, lt=1e12)]
Table = dict[Annotated[int, Field(ge=1, le=10**6)], Positive]
Chance = Annotated[float, Field(ge=0, le=1)]
Kind = Literal["baseline", "lookup", "drafter"]


def _counted(pair: list[int]) -> list[int]:
    if pair[0] > pair[1]:
        raise ValueError("more accepted than offered")
    return pair


Counted = Annotated[int, Field(ge=0, le=10**9)]
Counts = list[Annotated[list[Counted], Field(min_length=2, max_length=2), AfterValidator(_counted)]]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class ProfileKey(_Strict):
    """`dspark.tuning.key.Key`, as it is written."""

    chip: str | None
    gpu_cores: int | None
    cores: int | None
    memory_gb: int | None
    device: str | None
    blas: str | None
    mlx: str | None
    mlx_lm: str | None
    target: str
    drafter: str | None
    switches: dict[str, str] = {}

    def key(self) -> Key:
        """The key itself."""
        return Key(**{**self.model_dump(), "switches": tuple(sorted(self.switches.items()))})


class Measured(_Strict):
    """Circumstances. A `prior` comes from elsewhere: its acceptance is a hint, its times are nobody's here."""

    kind: Literal["measured", "prior"] = "measured"
    model: str
    drafter: str | None
    dtype: str
    date: str
    seconds: Share
    quick: bool = False
    mlx_dspark: str | None = None
    git: str | None = None
    disturbances: list[str] = []


class LevelTimes(_Strict):
    """At one depth of context, in tokens."""

    depth: Annotated[int, Field(ge=0)]
    verify_ms: Annotated[Table, Field(min_length=1)]
    verify_spread: dict[int, Share] = {}
    draft_ms: Table = {}

    @model_validator(mode="after")
    def _one_row(self) -> "LevelTimes":
        if 1 not in self.verify_ms:
            raise ValueError("verify_ms has no entry for one row")
        return self


class PrefillRate(_Strict):
    """Reading a prompt of `tokens` in chunks of `chunk`."""

    chunk: Annotated[int, Field(ge=1)]
    tokens: Annotated[int, Field(ge=1)]
    tokens_per_s: Positive


class MemoryRate(_Strict):
    """`dspark.machine.bandwidth.Bandwidth`, as it is written: of a copy, and of reading alone."""

    gb_s: Positive
    read_gb_s: Positive | None = None
    method: str


class HostTimes(_Strict):
    """`dspark.tuning.costs.Host`, as it is written."""

    wait_ms: Annotated[float, Field(gt=-1e12, lt=1e12)]
    overlap_ms: Share


class CurveTable(_Strict):
    """`dspark.tuning.curves.Curves`, as they are written."""

    levels: Annotated[list[LevelTimes], Field(min_length=1)]
    ahead_ms: Positive | None = None
    host: HostTimes | None = None
    lookup_ms: Share | None = None
    prefill: list[PrefillRate] = []
    kv_bytes_per_token: Positive | None = None
    bandwidth: MemoryRate | None = None
    noise: Share = 0.0
    drift: Annotated[float, Field(allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _distinct(self) -> "CurveTable":
        if len({level.depth for level in self.levels}) < len(self.levels):
            raise ValueError("two levels have the same depth")
        return self


class AcceptanceTable(_Strict):
    """`dspark.tuning.acceptance.Prior`, as it is written."""

    confidence: Counts = []
    position: Counts = []
    match: Counts = []


class DerivedSetting(_Strict):
    """One choice: `tried` is the best speculative cap even where plain decoding (cap 0) is chosen."""

    mode: Kind
    cap: Annotated[int, Field(ge=0)]
    lookup: bool
    confidence: Chance
    speedup: Positive
    low: Share
    tried: str


class Derived(_Strict):
    """`mode` and the `auto_*` are what mode auto stands for; `cap` and its kind are the best fixed over all classes."""

    mode: Kind
    auto_cap: Annotated[int, Field(ge=0)] | Literal["auto"]
    auto_lookup: bool
    auto_confidence: Chance = 0.0
    auto_speedup: dict[str, Positive]
    cap: Annotated[int, Field(ge=0)]
    lookup: bool
    confidence: Chance
    speedup: Positive
    low: Share
    reason: str
    drafter_bits: DrafterBits | None = None
    prefill_chunk: Annotated[int, Field(ge=1)] | None = None
    classes: dict[str, DerivedSetting] = {}
    depths: dict[int, DerivedSetting] = {}


class Profile(_Strict):
    """The whole file."""

    schema_version: Annotated[int, Field(alias="schema")] = SCHEMA
    key: ProfileKey
    measured: Measured
    curves: CurveTable
    acceptance: AcceptanceTable = AcceptanceTable()
    derived: Derived

    @model_validator(mode="after")
    def _of_its_pair(self) -> "Profile":
        if self.key.drafter is not None and not all(level.draft_ms for level in self.curves.levels):
            raise ValueError("curves have no draft_ms, though there is a drafter")
        if self.key.drafter is None and self.derived.mode == "drafter":
            raise ValueError("derived.mode is drafter, though there is none")
        if (self.derived.mode == "baseline") != (self.derived.auto_cap == 0):
            raise ValueError("derived.auto_cap does not go with derived.mode")
        return self

    @property
    def clean(self) -> bool:
        """Measured here, in full, and undisturbed: nothing to replace."""
        return self.measured.kind == "measured" and not self.measured.disturbances and not self.measured.quick

    def costs(self) -> CostModel:
        """The cost model that its curves make."""
        levels = (Depth(each.depth, points(each.verify_ms), points(each.draft_ms)) for each in self.curves.levels)
        host = Host(**self.curves.host.model_dump()) if self.curves.host else Host()
        return CostModel.of(levels, self.curves.ahead_ms, host, f"calibrated on {self.measured.date[:10]}")

    def prior(self) -> Prior:
        """What its answers were accepted."""
        return Prior(
            *(
                tuple(Count(*pair) for pair in counts)
                for counts in (self.acceptance.confidence, self.acceptance.position, self.acceptance.match)
            )
        )

    def settings(self) -> dict[str, Setting]:
        """What it chose, by class and over all, for the next calibration to start from."""
        derived = self.derived
        overall = "lookup" if self.key.drafter is None else "drafter"
        chosen = {OVERALL: (overall, derived.cap, derived.lookup, derived.confidence)}
        chosen |= {klass: (one.mode, one.cap, one.lookup, one.confidence) for klass, one in derived.classes.items()}
        return {
            klass: Setting(cap, mode == "drafter", lookup, confidence) if cap else PLAIN_SETTING
            for klass, (mode, cap, lookup, confidence) in chosen.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return self.model_dump(mode="json", by_alias=True)


def derived(decision: Decision, drafter_bits: int | None, prefill_chunk: int | None) -> Derived:
    """A decision, as it is written."""
    overall = decision.overall
    return Derived(
        mode=decision.default.means,
        auto_cap=decision.default.cap,
        auto_lookup=decision.default.lookup,
        auto_confidence=decision.default.confidence,
        auto_speedup={klass: round(speedup.value, 3) for klass, speedup in decision.default_speedup.items()},
        cap=overall.setting.fixed_cap,
        lookup=overall.setting.lookup,
        confidence=overall.setting.confidence,
        speedup=round(overall.tried_speedup.value, 3),
        low=round(overall.tried_speedup.low, 3),
        reason=decision.reason,
        drafter_bits=cast("DrafterBits | None", drafter_bits),
        prefill_chunk=prefill_chunk,
        classes={klass: _setting(choice) for klass, choice in decision.classes.items()},
        depths={depth: _setting(choice) for depth, choice in decision.depths.items()},
    )


def _setting(choice: Choice) -> DerivedSetting:
    return DerivedSetting(
        mode=choice.setting.means,
        cap=choice.setting.fixed_cap,
        lookup=choice.setting.lookup,
        confidence=choice.setting.confidence,
        speedup=round(choice.tried_speedup.value, 3),
        low=round(choice.tried_speedup.low, 3),
        tried=str(choice.tried),
    )


def curve_table(curves: Curves) -> CurveTable:
    """Curves, as they are written."""
    return CurveTable(
        levels=[
            LevelTimes(
                depth=level.depth,
                verify_ms={width: timing.ms for width, timing in level.verify.items()},
                verify_spread={width: timing.spread for width, timing in level.verify.items()},
                draft_ms={cap: timing.ms for cap, timing in level.draft.items()},
            )
            for level in curves.levels
        ],
        ahead_ms=curves.ahead.ms if curves.ahead else None,
        host=HostTimes(**asdict(curves.host)) if curves.host else None,
        lookup_ms=curves.lookup_ms,
        prefill=[PrefillRate(**asdict(rate)) for rate in curves.prefill],
        kv_bytes_per_token=curves.bytes_per_token,
        bandwidth=_memory_rate(curves.bandwidth) if curves.bandwidth else None,
        noise=curves.noise,
        drift=curves.drift,
    )


def _memory_rate(found: Bandwidth) -> MemoryRate:
    return MemoryRate(gb_s=found.gb_s, read_gb_s=found.read_gb_s, method=found.method)


def acceptance(prior: Prior) -> AcceptanceTable:
    """Counts, as they are written."""
    tables = {name: [[count.accepted, count.offered] for count in counts] for name, counts in vars(prior).items()}
    return AcceptanceTable(**tables)


def profile_key(key: Key) -> ProfileKey:
    """A key, as it is written."""
    return ProfileKey(**{**asdict(key), "switches": dict(key.switches)})


def to_yaml(profile: Profile) -> str:
    """The file: sections in order, each under a line that says what it holds; short rows on one line."""
    text = HEAD
    for name, value in profile.as_dict().items():
        if name in NOTES:
            text += f"\n# {NOTES[name]}\n"
        text += yaml.dump({name: _readable(value)}, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return text


def from_document(data: Any) -> Profile:
    """The profile that a document holds.

    Raises:
        ProfileError: what is wrong with it, as the end of a sentence that begins with its name.
    """
    if data is None:
        raise ProfileError("is empty")
    if not isinstance(data, dict):
        raise ProfileError("holds no profile")
    schema = data.get("schema")
    if isinstance(schema, int) and not isinstance(schema, bool) and schema > SCHEMA:
        raise ProfileError(f"was written by a newer mlx-dspark (schema {schema}, this one reads {SCHEMA})")
    if schema != SCHEMA:
        raise ProfileError("holds no profile" if schema is None else f"has an unknown schema {schema!r}")
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top"
        raise ProfileError(f"has a wrong value at {where}: {first['msg'].lower()}") from error


class _Row(dict[Any, Any]):
    """A mapping that is written on one line."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    _Row, lambda dumper, row: dumper.represent_mapping("tag:yaml.org,2002:map", row.items(), flow_style=True)
)
_Dumper.add_representer(
    list,
    lambda dumper, row: dumper.represent_sequence(
        "tag:yaml.org,2002:seq", row, flow_style=not any(isinstance(one, Mapping | str) for one in row)
    ),
)


def _readable(value: Any, name: str = "") -> Any:
    """Floats to four digits, and tables of numbers as rows; JSON's text keys become numbers again."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [_readable(one) for one in value]
    if not isinstance(value, dict):
        return value
    plain = {_number(key): _readable(one, str(key)) for key, one in value.items()}
    numbers = plain and all(isinstance(one, int | float) for one in plain.values())
    return _Row(plain) if numbers and name.endswith(("_ms", "_spread", "_speedup")) else plain


def _number(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isdecimal() else key
