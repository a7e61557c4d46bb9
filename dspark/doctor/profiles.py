"""Calibration profiles: measured here, measured elsewhere, outdated, missing."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dspark.doctor.check import Check, Subject
from dspark.errors import ProfileError, StorageError
from dspark.tuning import profiles
from dspark.tuning.profile import Profile

PROFILES = Subject("profiles", "Profiles")

VERSIONS = {"mlx", "mlx_lm", "blas"}

State = Literal["current", "stale", "foreign", "disturbed", "unreadable"]
TROUBLE: dict[State, str] = {
    "stale": "measured with other versions",
    "foreign": "measured on another machine",
    "disturbed": "measured while the machine was disturbed",
    "unreadable": "not readable",
}


@dataclass(frozen=True)
class ProfileState:
    """A profile on disk: `pair` is what a user calls it, or its file's name where that cannot be read.

    `why` says in a few words what is wrong with it.
    """

    pair: str
    state: State
    why: str | None = None


def states(here: Mapping[str, Any]) -> list[ProfileState]:
    """Every profile of the user's, judged by `here`, the fields of a key that tell of this machine and stack."""
    try:
        found = list(profiles.all_of())
    except StorageError:  # no home folder, which a check of its own tells
        return []
    return [_state(path.name, profile, here) for path, profile in found]


def _state(name: str, profile: Profile | ProfileError, here: Mapping[str, Any]) -> ProfileState:
    if isinstance(profile, ProfileError):
        return ProfileState(name, "unreadable", str(profile))
    pair, key = profile.measured.model, profile.key.model_dump()
    differing = [field for field, value in here.items() if key[field] != value]
    if differing:
        state: State = "stale" if set(differing) <= VERSIONS else "foreign"
        return ProfileState(pair, state, ", ".join(f"{field} {key[field]}" for field in differing))
    if profile.measured.disturbances:
        return ProfileState(pair, "disturbed", profile.measured.disturbances[0])
    return ProfileState(pair, "current")


def profile_checks(found: Iterable[ProfileState], missing: Iterable[str] = ()) -> list[Check]:
    """A check for every profile that will not be used, one for those that will, one for pairs that have none.

    `missing` names models on this disk, as `calibrate --model` takes them.
    """
    found = sorted(found, key=lambda profile: profile.pair)
    checks = [_trouble(profile) for profile in found if profile.state != "current"]
    current = [profile.pair for profile in found if profile.state == "current"]
    if current:
        checks.insert(0, PROFILES.ok(f"measured on this machine: {', '.join(current)}"))
    checks += [_missing(pair) for pair in sorted(missing)]
    return checks or [PROFILES.ok("none yet, and no pair on disk to measure")]


def _trouble(profile: ProfileState) -> Check:
    seen = f"{profile.pair}: {TROUBLE[profile.state]}" + (f" ({profile.why})" if profile.why else "")
    if profile.state == "unreadable":  # then its pair is not known
        return _of(profile.pair).warn(seen, "delete it; the next calibration of its pair writes it anew")
    todo = "measure it anew; until then it is not relied upon"
    return _of(profile.pair).warn(seen, todo, f"mlx-dspark calibrate --model {shlex.quote(profile.pair)}")


def _missing(pair: str) -> Check:
    todo = "measure it, to get the settings that win on this machine"
    return _of(pair).warn(f"{pair}: none yet", todo, f"mlx-dspark calibrate --model {shlex.quote(pair)}")


def _of(pair: str) -> Subject:
    return Subject(f"{PROFILES.id}.{pair}", PROFILES.title)
