"""GGUF headers that lie, told from those that do not without MLX, which would follow them out of the file and crash."""

import struct

import mlx.core as mx
import pytest
from drafters.gguf_file import write_q8

from dspark.drafters.gguf_layout import check
from dspark.drafters.packaging import read
from dspark.errors import CheckpointError

TENSORS = {"a.weight": mx.ones((4, 64)), "b.weight": mx.ones((3,))}
HEADER = {"general.architecture": "dflash", "dflash.block_count": mx.array(2), "dflash.taps": mx.array([1, 3])}


@pytest.fixture
def file(tmp_path):
    write_q8(tmp_path / "x.gguf", TENSORS, HEADER)
    return tmp_path / "x.gguf"


def test_files_as_they_are_written_pass(file, tmp_path):
    check(file)
    mx.save_gguf(str(tmp_path / "y.gguf"), TENSORS, {"name": "x", "words": ["a", "b"], "n": mx.array([1.0])})
    check(tmp_path / "y.gguf")


def test_every_cut_is_noticed(file):
    raw = file.read_bytes()
    whole = len(raw.rstrip(b"\0"))
    for length in range(whole):
        file.write_bytes(raw[:length])
        with pytest.raises(CheckpointError, match=r"x\.gguf"):
            check(file)


@pytest.mark.parametrize(
    ("at", "packed", "reason"),
    [
        (0, b"GGML", "no GGUF"),
        (4, struct.pack("<I", 9), "version 9"),
        (8, struct.pack("<Q", 2**63), "dimensions"),
        (16, struct.pack("<Q", 2**40), "unknown|ends inside|dimensions"),
        (24, struct.pack("<Q", 2**62), "ends inside"),
    ],
)
def test_numbers_that_lead_out_of_the_file(file, at, packed, reason):
    raw = bytearray(file.read_bytes())
    raw[at : at + len(packed)] = packed
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match=reason):
        read(file)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (0, 0, "0 dimensions"),
        (0, 2**31, "dimensions"),
        (1, 2**40, "cut short"),
        (1, 33, "whole number of blocks"),
        (2, 0, "whole number of blocks"),
        (3, 999, "type 999"),
        (4, 1 << 30, "cut short"),
        (4, 7, "whole number of blocks"),
    ],
)
def test_tensors_that_lie_outside_of_the_file(file, field, value, reason):
    raw = bytearray(file.read_bytes())
    at = raw.index(b"a.weight") + len(b"a.weight")
    fields = list(struct.unpack_from("<IQQIQ", raw, at))
    fields[field] = value
    struct.pack_into("<IQQIQ", raw, at, *fields)
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match=reason):
        read(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.gguf"):
        check(tmp_path / "none.gguf")
