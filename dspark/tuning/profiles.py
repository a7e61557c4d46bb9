"""Where profiles lie: an explicit path, the user's folder, and those shipped as priors. Written whole or not at all."""

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dspark import yamlfile
from dspark.errors import ProfileError, StorageError, UsageError
from dspark.hub import shelves
from dspark.hub.storage import in_place_of
from dspark.tuning.key import Key, file_name
from dspark.tuning.profile import MOST_BYTES, Profile, from_document, to_yaml
from dspark.yamlfile import Malformed

NONE = "none"
"""The explicit path that stands for no profile at all."""


@dataclass(frozen=True)
class Found:
    """`profile` is of this very key; `prior` is another machine's of the same pair. `notes` are for the user."""

    profile: Profile | None = None
    path: Path | None = None
    prior: Profile | None = None
    notes: tuple[str, ...] = ()


def folder() -> Path:
    """The user's profiles, `profiles` in `MLX_DSPARK_HOME`."""
    return shelves.home() / "profiles"


def find(model: str, key: Key, explicit: str | None = None) -> Found:
    """The profile in force for a pair, and what was wrong with those passed over.

    Raises:
        UsageError: `explicit` is no file.
    """
    if explicit == NONE:
        return Found()
    if explicit is not None:
        return _judged(named(explicit), key)
    found = Found()
    with suppress(StorageError):  # a home folder that is not known holds no profiles
        path = folder() / file_name(model, key)
        found = _judged(path, key) if _is_there(path) else Found()
    if found.profile is not None:
        return found
    return Found(prior=_shipped(key), notes=found.notes)


def named(explicit: str) -> Path:
    """The file that --profile names.

    Raises:
        UsageError: there is none.
    """
    path = shelves.expanded(explicit, "--profile")
    if not _is_there(path):
        wrong = "is no file" if path.exists() else "does not exist"
        raise UsageError(f"--profile {explicit} {wrong}; give a file that calibrate wrote, or none")
    return path


def read(path: Path) -> Profile:
    """Read one profile.

    Raises:
        ProfileError: it cannot be used; the message begins with its path and says what to do.
    """
    try:
        return from_document(yamlfile.read(path, MOST_BYTES))
    except Malformed as error:
        raise ProfileError(f"{path} is broken ({error}): run mlx-dspark calibrate to write it anew") from error
    except ProfileError as error:
        raise ProfileError(f"{path} {error}: run mlx-dspark calibrate to write it anew") from error
    except OSError as error:
        raise ProfileError(f"{path} cannot be read ({error.strerror}): check what it is and its permissions") from error


def write(profile: Profile) -> Path:
    """Put a profile into the user's folder in place of the one before, which stays whole until then.

    Raises:
        StorageError: the folder or disk refuses.
    """
    path = folder() / file_name(profile.measured.model, profile.key.key())
    with _written_to(path.parent), _locked(path.parent), in_place_of(path) as stream:
        stream.write(to_yaml(profile).encode("utf-8"))
    return path


def prepare() -> None:
    """Make sure that a profile can be written, before a minute is spent on measuring it.

    Raises:
        StorageError: the folder or disk refuses.
    """
    where = folder()
    with _written_to(where), tempfile.TemporaryFile(dir=where):
        pass


def all_of(where: Path | None = None) -> Iterator[tuple[Path, Profile | ProfileError]]:
    """Every profile of a folder (the user's), with what is wrong with those that cannot be read."""
    for path in sorted((where or folder()).glob("*.yaml")):
        try:
            profile = read(path)
        except ProfileError as error:
            yield path, error
        else:
            yield path, profile


def of_target(fingerprint: str) -> Profile | None:
    """The newest readable one of a target in the user's folder, whatever drafter and switches it was measured with."""
    found = [profile for _, profile in all_of() if isinstance(profile, Profile) and profile.key.target == fingerprint]
    return max(found, key=lambda profile: profile.measured.date, default=None)


def _judged(path: Path, key: Key) -> Found:
    try:
        profile = read(path)
    except ProfileError as error:
        return Found(notes=(f"{error}; until then costs are measured at load",))
    differing = key.differences(profile.key.key())
    if profile.measured.kind == "prior" and not {"target", "drafter"} & {*differing}:
        return Found(prior=profile, notes=(f"{path} was measured elsewhere: it is a hint only",))
    if differing:
        return Found(
            notes=(f"{path} is of another {' and '.join(differing)}, so it is not used: run mlx-dspark calibrate here",)
        )
    notes: tuple[str, ...] = ()
    if profile.measured.disturbances:
        notes = (f"the calibration in force was disturbed ({profile.measured.disturbances[0]}): calibrate again",)
    return Found(profile, path, notes=notes)


def _shipped(key: Key) -> Profile | None:
    """One of the same target and drafter that came with the package."""
    for entry in files("dspark.profiles").iterdir():
        if entry.name.endswith(".yaml"):
            with suppress(ProfileError, Malformed, OSError, UnicodeDecodeError):
                profile = from_document(yamlfile.parse(entry.read_text("utf-8")))
                if (profile.key.target, profile.key.drafter) == (key.target, key.drafter):
                    return profile
    return None


def _is_there(path: Path) -> bool:
    """What cannot even be looked at counts as there: reading it says why."""
    try:
        return path.is_file()
    except OSError:
        return True


@contextmanager
def _written_to(where: Path) -> Iterator[None]:
    """Make the folder, and say what to do where it refuses."""
    try:
        where.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write the profile to {where} ({error.strerror}): set MLX_DSPARK_HOME to a folder elsewhere"
        ) from error


@contextmanager
def _locked(where: Path) -> Iterator[None]:
    """One writer at a time; the lock goes with its process, however that ends."""
    with (where / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
