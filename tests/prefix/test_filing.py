"""Safetensors files: there as a whole or not at all, and never taken for what they are not."""

import errno
import json
import os

import mlx.core as mx
import numpy as np
import pytest

from dspark.prefix import filing
from dspark.prefix.filing import Damaged, Tensor
from dspark.prefix.packing import Unpackable, from_host, pack, to_host, unpack

ABOUT = {"key": {"model": "m"}, "lengths": None}
TENSORS = [
    Tensor("I32", (3,), np.array([1, 2, 3], dtype=np.int32)),
    Tensor("F32", (1, 2, 0, 8), np.zeros((1, 2, 0, 8), dtype=np.float32)),
    Tensor("BF16", (2, 2), np.array([[1, 2], [3, 4]], dtype=np.uint16)),
]


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "prefix-1.safetensors"
    assert filing.write(path, ABOUT, TENSORS) == path.stat().st_size
    return path


def test_c12_what_is_written_is_read_also_without_elements(written):
    about, tensors = filing.read(written)
    assert about == ABOUT
    assert [(t.dtype, t.shape, t.data.tolist()) for t in tensors] == [
        (t.dtype, t.shape, t.data.tolist()) for t in TENSORS
    ]
    about, first = filing.read_about(written)
    assert (about, first.data.tolist()) == (ABOUT, [1, 2, 3])


def test_it_is_a_safetensors_file(written):
    assert sorted(mx.load(str(written)))[0] == "0"


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 20, -1])
def test_c12_a_file_cut_short_is_damaged(written, keep):
    data = written.read_bytes()
    written.write_bytes(data[:keep])
    for reader in (filing.read, filing.read_about):
        with pytest.raises(Damaged):
            reader(written)


def test_a_flipped_bit_anywhere_is_noticed(written):
    data = written.read_bytes()
    for at in range(0, len(data), 3):
        written.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        try:
            about, tensors = filing.read(written)
        except Damaged:
            continue
        assert about == ABOUT and [t.data.tolist() for t in tensors] == [t.data.tolist() for t in TENSORS]


@pytest.mark.parametrize("offsets", [["0", 12], [0, 1e999], [-4, 12], [0, 10**30], [12], 12, [0.0, 12], [16, 12]])
def test_a_tensor_at_no_possible_place_is_damage(written, offsets):
    data = written.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["0"]["data_offsets"] = offsets
    head = json.dumps(header).encode()
    written.write_bytes(len(head).to_bytes(8, "little") + head + data[start:])
    for reader in (filing.read, filing.read_about):
        with pytest.raises(Damaged):
            reader(written)


def test_a_pipe_of_that_name_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "prefix-1.safetensors")
    for reader in (filing.read, filing.read_about):
        with pytest.raises(Damaged, match="no file"):
            reader(tmp_path / "prefix-1.safetensors")


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(filing.Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        filing.write(tmp_path / "prefix-1.safetensors", ABOUT, TENSORS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, mx.uint32, mx.int32, mx.bool_])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (1, 2, 3)])
def test_arrays_travel_bit_for_bit(dtype, shape):
    array = (mx.random.normal(shape) * 3).astype(dtype)
    again = from_host(to_host(array))
    assert again.dtype == dtype and again.shape == array.shape
    assert bool(mx.array_equal(again, array).item())


def test_trees_travel_as_they_are():
    tree = {"keys": (mx.ones(2), None), "offset": 3, "cache": [mx.zeros(1), {"left": "x"}], "on": True, "scale": 0.5}
    arrays = []
    again = unpack(pack(tree, arrays), arrays)
    assert again["keys"][1] is None and isinstance(again["keys"], tuple) and isinstance(again["cache"], list)
    assert (again["offset"], again["cache"][1], again["on"], again["scale"]) == (3, {"left": "x"}, True, 0.5)
    with pytest.raises(Unpackable):
        pack({"what": object()}, arrays)
