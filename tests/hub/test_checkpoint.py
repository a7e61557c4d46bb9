import struct

import pytest
from modelfolders import safetensors, write_model, write_repository

from dspark.errors import CheckpointError
from dspark.hub import checkpoint


def test_tensor_names_of_all_shards(tmp_path):
    folder = write_model(tmp_path / "m", shards=2)
    assert checkpoint.tensor_names(folder) == {"model.embed_tokens.0", "model.embed_tokens.1"}


@pytest.mark.parametrize("kept", [0, 5, 8, 40, -1])
def test_a_file_cut_short_is_named_with_what_to_delete(kept, tmp_path):
    folder = write_model(tmp_path / "m")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=rf"^model\.safetensors .*: delete {file} and run again$"):
        checkpoint.tensor_names(folder)


def test_the_content_behind_a_link_is_what_to_delete(tmp_path):
    snapshot = write_repository(tmp_path, "org/m")
    blob = (snapshot / "model.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"cut short .* delete {blob} and run again"):
        checkpoint.tensor_names(snapshot)


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\x05\x16\x07\x00\x02\x00\x00" + bytes(100),  # an AppleDouble file: a header of 2 TB
        struct.pack("<Q", 4) + b"[1] " + bytes(8),
        struct.pack("<Q", 11) + b'{"a": null}' + bytes(8),
        struct.pack("<Q", 6) + b"\xff\xfe\xfd\xfc\xfb\xfa",
        struct.pack("<Q", 40_000) + b"[" * 40_000,
    ],
)
def test_what_is_no_safetensors_file_is_said_so(content, tmp_path):
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"^model\.safetensors "):
        checkpoint.tensor_names(folder)


def test_metadata_is_no_tensor(tmp_path):
    folder = write_model(tmp_path / "m")
    whole = safetensors(["a"])
    header = whole[8:-4].replace(b"{", b'{"__metadata__": {"format": "mlx"}, ', 1)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert checkpoint.tensor_names(folder) == {"a"}


@pytest.mark.parametrize("content", ["{", "", "[1]", "[" * 100_000])
def test_a_config_that_is_no_object_is_refused(content, tmp_path):
    folder = write_model(tmp_path / "m")
    (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        checkpoint.read_config(folder)
