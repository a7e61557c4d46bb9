"""Model folders of a few bytes, in the layouts they are found in."""

import json
import struct
from pathlib import Path


def safetensors(tensors=("model.embed_tokens.weight", "model.norm.weight")) -> bytes:
    """A whole safetensors file with four bytes a tensor."""
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(tensors)
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(4 * len(tensors))


def write_model(folder: Path, *, shards=1, config=None) -> Path:
    """A folder that passes as a chat model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "qwen3"}))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors())
        return folder
    names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    for i, name in enumerate(names):
        (folder / name).write_bytes(safetensors([f"model.embed_tokens.{i}"]))
    index = {"metadata": {}, "weight_map": {f"model.embed_tokens.{i}": name for i, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_repository(cache: Path, name: str, *, revision="a" * 40, main=True, **model) -> Path:
    """A model in the Hugging Face layout: content in blobs, a snapshot of links; returns the snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / revision
    write_model(snapshot, **model)
    blobs.mkdir(parents=True, exist_ok=True)
    for file in list(snapshot.iterdir()):
        blob = blobs / f"{revision[:4]}{file.name}"
        file.replace(blob)
        file.symlink_to(Path("../../blobs") / blob.name)
    if main:
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(revision)
    return snapshot
