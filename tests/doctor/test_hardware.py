"""What is said of a machine's facts."""

from pathlib import Path

import pytest

from dspark.doctor import hardware
from dspark.doctor.probe import Stack
from dspark.machine.blas import Blas
from dspark.machine.facts import Memory, Runtime, System
from dspark.machine.watch import Conditions

GIB = 1024**3
GPU = Runtime("3.12.1", device="gpu", device_name="Apple M3 Max", gpu_architecture="applegpu_g15s")
CPU = Runtime("3.12.1", device="cpu", device_name="AMD EPYC")
REFERENCE = Path("/x/libblas.so.3")
OPENBLAS = Path("/usr/lib/libopenblas.so.0")


@pytest.mark.parametrize(
    ("system", "status"),
    [
        (System("macOS", architecture="arm64", translated=False), "ok"),
        (System("macOS", architecture="arm64"), "ok"),
        (System("macOS", architecture="x86_64", translated=True), "fail"),
        (System("macOS", architecture="x86_64"), "fail"),
        (System("Linux", architecture="x86_64", translated=False), "ok"),
        (System("Linux"), "ok"),
    ],
)
def test_architecture(system: System, status: str) -> None:
    check = hardware.architecture(system)
    assert check.status == status
    assert (check.todo is None) == (status == "ok")


def test_rosetta_is_called_by_its_name_and_its_remedy() -> None:
    check = hardware.architecture(System("macOS", architecture="x86_64", translated=True))
    assert "Rosetta" in check.seen
    assert "arm64 Python" in (check.todo or "")


@pytest.mark.parametrize(
    ("system", "status"),
    [
        (System("macOS", "13.7.8"), "fail"),
        (System("macOS", "14.0"), "ok"),
        (System("macOS", "27.0.1"), "ok"),
        (System("macOS"), "ok"),
        (System("Linux", "Debian GNU/Linux 12 (bookworm)"), "ok"),
        (System("win32"), "fail"),
    ],
)
def test_operating_system(system: System, status: str) -> None:
    assert hardware.operating_system(system).status == status


@pytest.mark.parametrize(
    ("runtime", "system", "status"),
    [
        (GPU, System("macOS", virtual=False), "ok"),
        (GPU, System("macOS", virtual=True), "warn"),
        (CPU, System("macOS"), "warn"),
        (CPU, System("Linux", virtual=True), "ok"),
    ],
)
def test_device(runtime: Runtime, system: System, status: str) -> None:
    check = hardware.device(Stack(runtime), system)
    assert check is not None
    assert check.status == status


def test_device_is_not_judged_without_mlx() -> None:
    assert hardware.device(Stack(Runtime("3.12.1", mlx_error="ImportError")), System("macOS")) is None


def test_the_reference_blas_gets_a_line_to_paste() -> None:
    check = hardware.blas_library(Blas(REFERENCE, OPENBLAS), frozenset({"avx512f"}), {})
    assert check.status == "warn"
    assert check.command == f"export LD_PRELOAD={OPENBLAS} OPENBLAS_NUM_THREADS=1 OPENBLAS_CORETYPE=SkylakeX"
    assert "10 to 60 times" in (check.todo or "")


@pytest.mark.parametrize(("user", "prefix"), [(0, ""), (501, "sudo ")])
def test_without_openblas_the_line_installs_it_first(monkeypatch: pytest.MonkeyPatch, user: int, prefix: str) -> None:
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr("os.geteuid", lambda: user)
    command = hardware.blas_library(Blas(REFERENCE), frozenset(), {}).command or ""
    assert command.startswith(f"{prefix}apt-get install -y libopenblas0-pthread && export LD_PRELOAD=/usr/lib")


def test_without_apt_the_remedy_names_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    check = hardware.blas_library(Blas(REFERENCE), frozenset(), {})
    assert (check.status, check.command) == ("warn", None)
    assert "package manager" in (check.todo or "")


def test_a_preloaded_openblas_is_well_unless_its_kernels_would_crash() -> None:
    found, modest = Blas(OPENBLAS, OPENBLAS), frozenset({"avx2"})
    assert hardware.blas_library(found, modest, {}).status == "ok"
    assert hardware.blas_library(found, modest, {"OPENBLAS_CORETYPE": "Haswell"}).status == "ok"
    assert hardware.blas_library(found, modest, {"OPENBLAS_CORETYPE": "SkylakeX"}).status == "fail"
    assert hardware.blas_library(found, frozenset({"avx512f"}), {"OPENBLAS_CORETYPE": "SkylakeX"}).status == "ok"


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (Memory(64 * GIB, 30 * GIB), "ok"),
        (Memory(16 * GIB, GIB), "warn"),
        (Memory(128 * GIB, 60 * GIB, gpu_wired_limit_bytes=112 * GIB), "ok"),
        (Memory(128 * GIB, 60 * GIB, gpu_wired_limit_bytes=122 * GIB), "warn"),
        (Memory(128 * GIB, 60 * GIB, gpu_wired_limit_bytes=0), "ok"),
        (Memory(), "ok"),
    ],
)
def test_memory(found: Memory, status: str) -> None:
    assert hardware.memory(found).status == status


def test_what_is_unknown_is_called_unknown() -> None:
    assert hardware.pressure(Memory()).seen == "unknown"
    assert hardware.swap(Memory()).seen == "unknown"
    assert hardware.memory(Memory()).seen == "unknown, unknown available"


def test_pressure_and_swap_warn() -> None:
    assert hardware.pressure(Memory(pressure="normal")).status == "ok"
    assert hardware.pressure(Memory(pressure="critical")).status == "warn"
    assert hardware.swap(Memory(16 * GIB, swap_total_bytes=24 * GIB, swap_used_bytes=23 * GIB)).status == "warn"
    assert hardware.swap(Memory(16 * GIB, swap_total_bytes=GIB, swap_used_bytes=GIB // 2)).status == "ok"


def test_a_device_that_does_not_compute_is_broken() -> None:
    check = hardware.device(Stack(GPU, compute_error="the process crashed with SIGABRT"), System("macOS"))
    assert check is not None
    assert check.status == "fail"
    assert "SIGABRT" in check.seen


@pytest.mark.parametrize(
    ("found", "status", "word"),
    [
        (Conditions(), "ok", "unknown"),
        (Conditions(power_source="mains", power_mode="high"), "ok", "high"),
        (Conditions(power_source="battery", power_mode="normal"), "warn", "battery"),
        (Conditions(power_source="mains", power_mode="low"), "warn", "low"),
    ],
)
def test_power(found: Conditions, status: str, word: str) -> None:
    check = hardware.power(found)
    assert check.status == status
    assert word in check.seen


def test_battery_and_low_power_mode_are_both_told() -> None:
    todo = hardware.power(Conditions(power_source="battery", power_mode="low")).todo or ""
    assert "plug it in" in todo
    assert "low power mode" in todo


def test_heat_and_other_programs() -> None:
    assert hardware.heat(Conditions()).seen == "thermal pressure unknown"
    assert hardware.heat(Conditions(thermal="nominal")).status == "ok"
    assert hardware.heat(Conditions(thermal="heavy")).status == "warn"
    assert hardware.load(Conditions()).seen == "unknown"
    assert hardware.load(Conditions(others_cpu=0.01)).status == "ok"
    assert hardware.load(Conditions(others_cpu=0.5)).status == "warn"
