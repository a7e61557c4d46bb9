"""A folder that holds a model: is it all there, and what its weight files say about themselves.

Only names, JSON and the first bytes of each weight file are read; nothing is loaded or imported.
"""

import hashlib
import json
import re
import struct
from pathlib import Path
from typing import Any

from dspark.errors import CheckpointError, StorageError

INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_FINGERPRINT_BYTES = 1 << 20
_HEADER_LIMIT_BYTES = 100_000_000  # the format's own limit
GGUF_HINT = "holds only GGUF files, which MLX does not run: take the model's MLX build"


def weight_files(folder: Path) -> list[Path]:
    """The `*.safetensors` of a folder, sorted; `._*` files that macOS leaves on foreign disks are none."""
    return sorted(file for file in folder.glob("*.safetensors") if not file.name.startswith("."))


def json_files(folder: Path) -> list[Path]:
    """Every JSON file of a folder and below, sorted."""
    return sorted(file for file in folder.rglob("*.json") if not file.name.startswith("._") and file.is_file())


def flaw(folder: Path) -> str | None:
    """What keeps `folder` from being a complete checkpoint, as the end of a sentence that starts with its name.

    Complete means `config.json`, and every shard that the index (or the shards' own numbering) announces, each a real
    file: a dangling link or one into an unfinished download does not count.
    """
    try:
        return _flaw(folder)
    except OSError as error:
        raise StorageError(f"{folder} cannot be read ({error.strerror}): check its permissions") from error


def _flaw(folder: Path) -> str | None:
    weights = weight_files(folder)
    if not weights and any(folder.glob("*.gguf")):
        return GGUF_HINT
    if not _finished(folder / "config.json"):
        return "has no config.json"
    names = {file.name for file in weights}
    if (folder / INDEX).exists():
        shards = read_json(folder / INDEX)
        shards = shards.get("weight_map") if isinstance(shards, dict) else None
        if not isinstance(shards, dict):
            return f"has no weight_map in its {INDEX}"
        names.update(str(name) for name in shards.values())
    for shard in [match for match in map(_SHARD.fullmatch, names) if match]:
        stem, _, count = shard.groups()
        names.update(f"{stem}-{number:05d}-of-{count}.safetensors" for number in range(1, int(count) + 1))
    if not names:
        return "has no *.safetensors"
    absent = sorted(name for name in names if not _finished(folder / name))
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        return f"lacks {absent[0]}{more}"
    return None


def _finished(file: Path) -> bool:
    return file.is_file() and file.resolve().suffix != ".incomplete"


def read_json(file: Path) -> Any:
    """The parsed content of a JSON file; `CheckpointError` names a file that is none."""
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror}): check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not valid JSON: delete {file.resolve()} and run again") from error


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`, which must hold an object."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise CheckpointError(f"{folder / 'config.json'} holds no JSON object: this folder is not a model")
    return config


def check_layers(folder: Path, tensors: int) -> None:
    """Raise `CheckpointError` for more layers than weights: they are built first, as many as there is memory for."""
    config = read_config(folder)
    nested = config.get("text_config")
    for group in (config, nested if isinstance(nested, dict) else {}):
        layers = group.get("num_hidden_layers")
        if isinstance(layers, int | float) and layers > tensors:
            raise CheckpointError(
                f"{folder / 'config.json'} has {layers} layers, which {tensors} tensors cannot be the weights of: "
                "fetch the model again, or take another"
            )


def fingerprint(path: Path) -> str:
    """What identifies a checkpoint (a folder or a .gguf file): its config, and its weight files' sizes and beginnings.

    Raises OSError where a file cannot be read.
    """
    digest = hashlib.sha256()
    files = [path] if path.is_file() else [path / "config.json", *weight_files(path), *sorted(path.glob("*.gguf"))]
    for file in files:
        with file.open("rb") as stream:
            head = stream.read(_FINGERPRINT_BYTES)
        digest.update(f"{file.name} {file.stat().st_size} ".encode() + head)
    return digest.hexdigest()


def edition(path: Path) -> str:
    """A stricter identity than `fingerprint`, for what must not outlive any change: also when each file was written.

    Raises OSError where a file cannot be read.
    """
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.suffix in (".safetensors", ".gguf")]
    written = " ".join(f"{file.name} {file.stat().st_mtime_ns}" for file in sorted(files))
    return hashlib.sha256(f"{fingerprint(path)} {written}".encode()).hexdigest()


def tensor_names(folder: Path) -> set[str]:
    """Names of all tensors in the folder; `CheckpointError` names a weight file that is damaged or cut short."""
    return {name for file in weight_files(folder) for name in _read_header(file)}


def _read_header(file: Path) -> list[str]:
    """Tensor names from a safetensors header, after comparing what it promises with the size of the file."""
    # The advice names the file behind a link: a cache that keeps content apart would only link the same content again.
    advice = f"delete {file.resolve()} and run again"
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(size, _HEADER_LIMIT_BYTES):
                raise CheckpointError(f"{file.name} does not start like a safetensors file: {advice}")
            raw = stream.read(length)
    except OSError as error:
        raise StorageError(f"{file} cannot be read ({error.strerror}): check its permissions") from error
    if len(raw) < length:
        raise CheckpointError(f"{file.name} is cut short inside its header: {advice}")
    try:
        header: dict[str, Any] = json.loads(raw)
        header.pop("__metadata__", None)
        end = max((int(tensor["data_offsets"][1]) for tensor in header.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file.name} has a header that cannot be read: {advice}") from error
    if size < 8 + length + end:
        raise CheckpointError(f"{file.name} is cut short ({size:,} of {8 + length + end:,} bytes): {advice}")
    return list(header)
