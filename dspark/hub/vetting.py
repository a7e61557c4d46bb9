"""Checkpoints that must not be loaded: those that bring Python of their own, and drafters offered as chat models.

A model's JSON files can name Python files beside them (`auto_map`, `model_file`) that a loader then imports. Whoever
wants that says so for the whole process, by flag or by `MLX_DSPARK_TRUST_REMOTE_CODE=1`. Looking never imports.

A drafter goes to no such loader: its config and tensors are read by this package alone. What authors put into it for
transformers (`auto_map`) is therefore left standing.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from dspark.errors import CheckpointError, RemoteCodeRefused, StorageError
from dspark.hub import checkpoint

_CODE_KEYS = {"automap": "auto_map", "modelfile": "model_file"}
_EMBEDDING = re.compile(r"embed|(^|\.)wte\.")
_DRAFTER_TENSOR = re.compile(r"(^|\.)(markov_head|confidence_head|candidate_selector)\.|^(d2t|t2d)$")
_DRAFTER_ARCHITECTURE = re.compile(r"dspark|dflash", re.IGNORECASE)


def trusted(flag: bool) -> bool:
    """Whether code in checkpoints may run, by the caller's flag or the environment."""
    return flag or os.environ.get("MLX_DSPARK_TRUST_REMOTE_CODE", "").strip().lower() in {"1", "true", "yes", "on"}


def refuse_code(folder: Path, *, trust_remote_code: bool, drafter: bool = False) -> None:
    """Raise `RemoteCodeRefused`, naming file and keys, if any JSON file of the folder points to Python code.

    `drafter`: the folder will be read as a drafter and nothing else, so that `auto_map` is idle.
    """
    if trusted(trust_remote_code):
        return
    names = {key: name for key, name in _CODE_KEYS.items() if not (drafter and name == "auto_map")}
    files = checkpoint.json_files(folder)
    found = {file.relative_to(folder): keys for file in files if (keys := _code_keys(file, names))}
    if found:
        where = "; ".join(f"{name}: {', '.join(sorted(keys))}" for name, keys in found.items())
        raise RemoteCodeRefused(
            f"{folder} wants Python of its own to be run ({where}): if you trust its author, "
            "pass --trust-remote-code or set MLX_DSPARK_TRUST_REMOTE_CODE=1"
        )


def _code_keys(file: Path, names: dict[str, str]) -> set[str]:
    """Keys that name code, at any depth and in any spelling of `names`.

    A number under such a key is a word of a vocabulary, null is nothing.
    """
    found: set[str] = set()

    # Called for every object with all its pairs, so a key that is repeated cannot hide behind its namesake.
    def look(pairs: list[tuple[str, Any]]) -> str:
        for key, value in pairs:
            name = names.get(re.sub(r"[\W_]", "", key).lower())
            if name and isinstance(value, str | list):
                found.add(name if key == name else f"{key} ({name})")
        return "object"

    try:
        json.loads(file.read_bytes(), object_pairs_hook=look)
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror}): check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not valid JSON: delete {file.resolve()} and run again") from error
    return found


def refuse_drafter(folder: Path) -> None:
    """Raise `CheckpointError` if the folder holds a drafter, whatever model type its config claims.

    Needs `config.json`; weight files that are there are judged by their tensor names.
    """
    reason = drafter_sign(folder)
    if reason:
        raise CheckpointError(
            f"{folder} is a drafter, not a chat model ({reason}): pass it as --drafter, and its target as --model"
        )


def drafter_sign(folder: Path) -> str | None:
    """What shows that the folder holds a drafter, None if nothing does; raises `CheckpointError` for damaged files."""
    return _drafter_config(checkpoint.read_config(folder)) or _drafter_tensors(checkpoint.tensor_names(folder))


def _drafter_config(config: dict[str, Any]) -> str | None:
    for key in ("speculators_model_type", "speculators_config", "dflash_config", "dspark_config"):
        if key in config:
            return f"its config has {key}"
    if any(key.startswith("markov_") for key in config):
        return "its config has a Markov head"
    architectures = config.get("architectures")
    for name in architectures if isinstance(architectures, list) else []:
        if _DRAFTER_ARCHITECTURE.search(str(name)):
            return f"its architecture is {name}"
    return None


def _drafter_tensors(names: set[str]) -> str | None:
    own = next((name for name in sorted(names) if _DRAFTER_TENSOR.search(name)), None)
    if own:
        return f"it holds {own}"
    if names and not any(_EMBEDDING.search(name) for name in names):
        return "it has no token embedding"
    return None
