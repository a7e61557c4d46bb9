"""Reading a drafter: which packaging it is, its canonical config, and its tensors by canonical names."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from dspark.drafters import deepspec, gemma, gguf, liquid, nemotron, specforge, speculators, zlab
from dspark.drafters.config import DrafterConfig
from dspark.drafters.refusals import refuse_config, refuse_files
from dspark.drafters.tensors import read_safetensors
from dspark.errors import DrafterFormatError

Translate = Callable[[dict[str, Any]], DrafterConfig]

_BY_ARCHITECTURE: dict[str, Translate] = {
    "Qwen3DSparkModel": deepspec.translate,
    "Qwen35DSparkModel": deepspec.translate,
    "Gemma4DSparkModel": gemma.translate,
    "DFlashDraftModel": zlab.translate,
    "DFlash2DraftModel": zlab.translate_second,
    "DSparkDraftModel": specforge.translate,
    "Lfm2DSparkDraftModel": liquid.translate,
}


@dataclass(frozen=True)
class Checkpoint:
    """A drafter on disk: its config in canonical terms, and its floating-point tensors when asked for them."""

    config: DrafterConfig
    tensors: Callable[[], dict[str, mx.array]]


def read(path: Path) -> Checkpoint:
    """The drafter in a folder, in a .gguf file, or in a folder that holds nothing but one.

    Raises:
        DrafterFormatError: the packaging is unknown, incomplete or contradictory; the message names the field.
        CheckpointError: a file cannot be read.
    """
    file = _gguf_file(path)
    if file is not None:
        config, tensors = gguf.read(file)
        return Checkpoint(config, lambda: tensors)
    config = read_config(path)
    refuse_files([entry.name for entry in path.iterdir()])
    return Checkpoint(config, lambda: read_safetensors(path, config.quantization))


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
    except (OSError, ValueError, RecursionError) as error:
        raise DrafterFormatError(f"{file} is not readable JSON ({error}); fetch the drafter again") from error
    if not isinstance(fields, dict):
        raise DrafterFormatError(f"{file} does not hold a JSON object; fetch the drafter again")
    return translate(fields)


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Translate the parsed config.json of any known packaging.

    Raises:
        DrafterFormatError: as `read_config`.
    """
    if not isinstance(fields.get("quantization") or {}, dict):
        raise DrafterFormatError("the drafter's quantization is not an object; fetch its config again")
    if any(key in fields for key in ("speculators_model_type", "speculators_config", "transformer_layer_config")):
        return speculators.translate(fields)
    refuse_config(fields)
    architectures = fields.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else None
    nested = fields.get("dflash_config")
    if isinstance(nested, dict) and nested.get("projector_type") == "dspark":
        return specforge.translate(fields)
    if architecture is None:
        raise DrafterFormatError("the drafter's config names no architecture; is this a drafter?")
    if architecture == "Qwen3DSparkModel" and nemotron.recognises(fields):
        return nemotron.translate(fields)
    reader = _BY_ARCHITECTURE.get(str(architecture))
    if reader is None:
        known = ", ".join([*_BY_ARCHITECTURE, "the speculators packaging"])
        raise DrafterFormatError(f"drafters of architecture {architecture} are not supported; known are {known}")
    return reader(fields)


def _gguf_file(path: Path) -> Path | None:
    if path.suffix.lower() == ".gguf":
        return path
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) > 1:
            raise DrafterFormatError(f"{path} holds {len(files)} .gguf files; name the one to use")
        return files[0] if files else None
    return None
