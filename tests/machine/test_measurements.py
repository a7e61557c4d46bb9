"""Bandwidth, precision and load are measured for real, on little memory; their values are this machine's own affair."""

import sys

import pytest

from dspark import machine
from dspark.machine import arithmetic, bandwidth, load, precision
from dspark.machine.facts import Chip, Machine, Memory, Runtime, System
from dspark.machine.load import CpuTimes

LITTLE = Machine(
    Chip(cores=2, usable_cores=2), System("Linux"), Memory(available_bytes=100 << 20), Runtime("3.12", device="cpu")
)


def test_bandwidth_on_all_usable_cores() -> None:
    found = bandwidth.measure(LITTLE)
    assert found.source == "measured"
    assert found.method.startswith("copy of 12 MiB on 2 CPU threads")
    assert found.gb_s > 0
    assert found.read_gb_s is not None and found.read_gb_s > 0
    assert found.ceiling_gb_s == max(found.gb_s, found.read_gb_s)


def test_bandwidth_where_mlx_has_a_gpu() -> None:
    mx = pytest.importorskip("mlx.core")
    found = bandwidth._on_gpu(8 << 20)  # on whatever device MLX has
    assert mx.default_device() is not None
    assert "8 MiB on the GPU" in found.method
    assert found.gb_s > 0


def test_a_gpu_that_refuses_leaves_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> None:
        raise RuntimeError("no Metal device")

    monkeypatch.setattr(bandwidth, "_on_gpu", refuse)
    virtual = Machine(LITTLE.chip, LITTLE.system, LITTLE.memory, Runtime("3.12", device="gpu"))
    assert "CPU threads" in bandwidth.measure(virtual).method


def test_arithmetic_where_mlx_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx.core")
    monkeypatch.setattr(arithmetic, "SIDES", {"cpu": (16, 32), "gpu": (16, 32)})
    found = arithmetic.measure()
    assert found is not None and found.tflop_s > 0
    assert "product of" in found.method


@pytest.mark.parametrize(
    ("milliseconds", "chosen"),
    [
        ({"fp32": 7.0, "bf16": 16.0, "q4": 15.0}, "fp32"),
        ({"fp32": 20.0, "bf16": 10.0, "q4": 5.0}, "q4"),
        ({"fp32": 10.3, "bf16": 10.2, "q4": 10.0}, "fp32"),  # a tie goes to the most exact
        ({"fp32": 20.0, "bf16": 10.3, "q4": 10.0}, "bf16"),
    ],
)
def test_the_fastest_precision_is_chosen_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, milliseconds: dict[str, float], chosen: str
) -> None:
    monkeypatch.setattr(precision, "measure", lambda: milliseconds)
    found, reason = precision.fastest_precision()
    assert found == chosen
    assert all(f"{name} {time_ms:.1f} ms" in reason for name, time_ms in milliseconds.items())


def test_precisions_are_measured_most_exact_first() -> None:
    pytest.importorskip("mlx.core")
    measured = precision.measure()
    assert list(measured) == ["fp32", "bf16", "q4"]
    assert all(time_ms > 0 for time_ms in measured.values())


def test_cores_kept_busy_by_others() -> None:
    before, after = CpuTimes(100.0, 50.0, 10.0), CpuTimes(102.0, 53.0, 11.0)
    assert load.busy_cores(before, after) == 1.0
    assert load.busy_cores(before, CpuTimes(102.0, 51.0, 12.0)) == 0.0  # clocks of different grain: never negative
    assert load.busy_cores(before, before) is None
    assert load.busy_cores(None, after) is None


def test_this_process_is_not_among_the_others() -> None:
    before = load.cpu_times()
    sum(index * index for index in range(300_000))
    after = load.cpu_times()
    assert before is not None and after is not None
    assert after.own_s > before.own_s


def test_a_description_is_ready_for_json() -> None:
    import json

    described = json.loads(json.dumps(machine.describe().as_dict()))
    assert set(described) == {"chip", "system", "memory", "runtime"}
    assert described["runtime"]["python"] == sys.version.split()[0]
