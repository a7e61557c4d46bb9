"""Reading a drafter folder: which packaging it is, and its translation to the canonical config."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dspark.drafters import deepspec, speculators
from dspark.drafters.config import DrafterConfig
from dspark.errors import DrafterFormatError

_BY_ARCHITECTURE: dict[str, Callable[[dict[str, Any]], DrafterConfig]] = {
    "Qwen3DSparkModel": deepspec.translate,
}


def read_config(folder: Path) -> DrafterConfig:
    """The canonical config of the drafter in `folder`, from its config.json alone.

    Raises:
        DrafterFormatError: no config, or one that is unknown, incomplete or contradictory; the message names the field.
    """
    file = folder / "config.json"
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DrafterFormatError(
            f"{folder} has no config.json, so it is not a drafter; check the path given to --drafter"
        ) from error
    except (OSError, ValueError) as error:
        raise DrafterFormatError(f"{file} is not readable JSON ({error}); fetch the drafter again") from error
    if not isinstance(fields, dict):
        raise DrafterFormatError(f"{file} does not hold a JSON object; fetch the drafter again")
    return translate(fields)


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Translate the parsed config.json of any known packaging.

    Raises:
        DrafterFormatError: as `read_config`.
    """
    if "speculators_model_type" in fields or "speculators_config" in fields:
        return speculators.translate(fields)
    architecture = next(iter(fields.get("architectures") or []), None)
    if architecture is None:
        raise DrafterFormatError("the drafter's config names no architecture; is this a drafter?")
    reader = _BY_ARCHITECTURE.get(architecture)
    if reader is None:
        known = ", ".join([*_BY_ARCHITECTURE, "the speculators packaging"])
        raise DrafterFormatError(f"drafters of architecture {architecture} are not supported; known are {known}")
    return reader(fields)
