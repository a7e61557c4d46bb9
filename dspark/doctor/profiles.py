"""Calibration profiles: measured here, measured elsewhere, outdated, missing."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dspark.doctor.check import Check, Subject

PROFILES = Subject("profiles", "Profiles")

State = Literal["current", "stale", "foreign", "disturbed", "unreadable"]
TROUBLE: dict[State, str] = {
    "stale": "measured with other versions",
    "foreign": "measured on another machine",
    "disturbed": "measured while the machine was disturbed",
    "unreadable": "not readable",
}


@dataclass(frozen=True)
class ProfileState:
    """A profile on disk: `pair` is what a user calls it, `why` says in a few words what is wrong with it."""

    pair: str
    state: State
    why: str | None = None


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
    todo = "measure it anew; until then it is not relied upon"
    return _of(profile.pair).warn(seen, todo, f"mlx-dspark calibrate --model {shlex.quote(profile.pair)}")


def _missing(pair: str) -> Check:
    todo = "measure it, to get the settings that win on this machine"
    return _of(pair).warn(f"{pair}: none yet", todo, f"mlx-dspark calibrate --model {shlex.quote(pair)}")


def _of(pair: str) -> Subject:
    return Subject(f"{PROFILES.id}.{pair}", PROFILES.title)
