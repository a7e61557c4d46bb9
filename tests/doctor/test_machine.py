"""Each check's verdict and remedy."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest
from recorded import RecordedMac

from dspark.machine import checks, report
from dspark.machine.blas import Blas
from dspark.machine.checks import Check
from dspark.machine.darwin import Darwin
from dspark.machine.facts import Memory, Runtime, System

GIB = 1024**3
GPU = Runtime("3.12.1", device="gpu", device_name="Apple M3 Max", gpu_architecture="applegpu_g15s")
CPU = Runtime("3.12.1", device="cpu", device_name="AMD EPYC")
REFERENCE = Path("/x/libblas.so.3")
OPENBLAS = Path("/usr/lib/libopenblas.so.0")


@dataclass(frozen=True)
class Shelf:
    kind: str
    path: Path
    exists: bool


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
    check = checks.architecture(system)
    assert check.status == status
    assert (check.todo is None) == (status == "ok")


def test_rosetta_is_called_by_its_name_and_its_remedy() -> None:
    check = checks.architecture(System("macOS", architecture="x86_64", translated=True))
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
    assert checks.operating_system(system).status == status


def test_packages() -> None:
    wanted = "mlx[cpu]<0.33,>=0.32.4"
    assert checks.package("mlx", "0.32.4", None, wanted, True) == Check("mlx", "ok", "0.32.4")
    missing = checks.package("mlx", None, None, wanted, True)
    assert (missing.status, missing.command) == ("fail", f"python -m pip install '{wanted}'")
    broken = checks.package("mlx", "0.32.4", "ImportError: libmlx.so", wanted, True)
    assert (broken.status, broken.seen) == ("fail", "0.32.4 does not import (ImportError: libmlx.so)")
    assert checks.package("mlx", "0.40.0", None, wanted, False).status == "warn"


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
    check = checks.device(runtime, system)
    assert check is not None
    assert check.status == status


def test_device_is_not_judged_without_mlx() -> None:
    assert checks.device(Runtime("3.12.1", mlx_error="ImportError"), System("macOS")) is None


def test_the_reference_blas_gets_a_line_to_paste() -> None:
    check = checks.blas_library(Blas(REFERENCE, OPENBLAS), frozenset({"avx512f"}), {})
    assert check.status == "warn"
    assert check.command == f"export LD_PRELOAD={OPENBLAS} OPENBLAS_NUM_THREADS=1 OPENBLAS_CORETYPE=SkylakeX"
    assert "10 to 60 times" in (check.todo or "")


@pytest.mark.parametrize(("user", "prefix"), [(0, ""), (501, "sudo ")])
def test_without_openblas_the_line_installs_it_first(monkeypatch: pytest.MonkeyPatch, user: int, prefix: str) -> None:
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr("os.geteuid", lambda: user)
    command = checks.blas_library(Blas(REFERENCE), frozenset(), {}).command or ""
    assert command.startswith(f"{prefix}apt-get install -y libopenblas0-pthread && export LD_PRELOAD=/usr/lib")


def test_without_apt_the_remedy_names_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    check = checks.blas_library(Blas(REFERENCE), frozenset(), {})
    assert (check.status, check.command) == ("warn", None)
    assert "package manager" in (check.todo or "")


def test_a_preloaded_openblas_is_well_unless_its_kernels_would_crash() -> None:
    found, modest = Blas(OPENBLAS, OPENBLAS), frozenset({"avx2"})
    assert checks.blas_library(found, modest, {}).status == "ok"
    assert checks.blas_library(found, modest, {"OPENBLAS_CORETYPE": "Haswell"}).status == "ok"
    assert checks.blas_library(found, modest, {"OPENBLAS_CORETYPE": "SkylakeX"}).status == "fail"
    assert checks.blas_library(found, frozenset({"avx512f"}), {"OPENBLAS_CORETYPE": "SkylakeX"}).status == "ok"


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
    assert checks.memory(found).status == status


def test_what_is_unknown_is_called_unknown() -> None:
    assert checks.pressure(Memory()).seen == "unknown"
    assert checks.swap(Memory()).seen == "unknown"
    assert checks.memory(Memory()).seen == "unknown, unknown available"


def test_pressure_and_swap_warn() -> None:
    assert checks.pressure(Memory(pressure="normal")).status == "ok"
    assert checks.pressure(Memory(pressure="critical")).status == "warn"
    assert checks.swap(Memory(16 * GIB, swap_total_bytes=24 * GIB, swap_used_bytes=23 * GIB)).status == "warn"
    assert checks.swap(Memory(16 * GIB, swap_total_bytes=GIB, swap_used_bytes=GIB // 2)).status == "ok"


def test_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "not" / "yet"
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 80 * GIB}))
    assert checks.disk(folder, 1) == Check("disk.1", "ok", f"80.0 GiB free for {folder}")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": GIB}))
    assert checks.disk(folder, 1).status == "warn"


def test_a_folder_that_cannot_be_written_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert checks.disk(tmp_path, 1).status == "fail"


def test_only_a_folder_that_the_user_named_must_exist(tmp_path: Path) -> None:
    assert checks.model_folder(Shelf("extra", tmp_path / "gone", False), 1).status == "warn"
    assert checks.model_folder(Shelf("lm studio", tmp_path / "gone", False), 2).status == "ok"
    assert checks.model_folder(Shelf("own", tmp_path, True), 3) == Check("models.3", "ok", f"own: {tmp_path}")


def test_variables(tmp_path: Path) -> None:
    library = tmp_path / "there.so"
    library.touch()
    environment = {
        "PATH": "/bin",
        "HF_HOME": "/models",
        "HF_TOKEN": "hf_secret",
        "HF_ENDPOINT": "https://user:word@hub.example",
        "HF_HUB_OFFLINE": "",
        "MLX_DSPARK_API_KEY": "sk-secret",
        "MLX_DSPARK_TRUST_REMOTE_CODE": "1",
        "LD_PRELOAD": f"{library}:{tmp_path}/gone.so",
    }
    found = {check.id: check for check in checks.environment_variables(environment)}
    assert set(found) == {
        f"environment.{name}" for name in environment if name not in ("PATH", "HF_HUB_OFFLINE")
    }  # fmt: skip
    assert found["environment.HF_HOME"].seen == "/models"
    assert found["environment.HF_ENDPOINT"].seen == "https://hub.example"
    assert found["environment.MLX_DSPARK_TRUST_REMOTE_CODE"].status == "warn"
    assert found["environment.LD_PRELOAD"].status == "warn"
    assert f"{tmp_path}/gone.so is missing" in found["environment.LD_PRELOAD"].seen
    assert "secret" not in str(found)


def test_trust_switched_off_is_no_warning() -> None:
    assert checks.environment_variables({"MLX_DSPARK_TRUST_REMOTE_CODE": "0"})[0].status == "ok"


def test_no_variable_is_said_too() -> None:
    assert checks.environment_variables({"PATH": "/bin"}) == [Check("environment", "ok", "nothing set")]


def test_a_report_of_a_translated_mac_is_broken() -> None:
    mac = Darwin(RecordedMac("sysctl.m4-16gb-macos27", "sysctl.proc_translated: 1"), "x86_64")
    found = report.inspect([], [], {}, mac)
    assert found.broken
    assert [check.id for check in found.checks if check.status == "fail"] == ["architecture"]


def test_a_report_of_a_mac_without_answers_is_still_made() -> None:
    def nothing(*command: str) -> None:
        return None

    found = report.inspect([Shelf("own", Path("/gone"), False)], [], {}, Darwin(nothing, "arm64"))
    assert {"architecture", "os", "memory", "pressure", "swap", "models.1"} <= {check.id for check in found.checks}
    assert not found.broken


def test_redaction(tmp_path: Path) -> None:
    home = tmp_path / "maria"
    check = Check("models.1", "warn", f"own: {home}/models of maria", "see /Users/jo/x", f"ls {home}-old {home}")
    found = report.Report("0.1.0", "2026-10-01T00:00:00+00:00", (check,)).redacted(home, "maria").checks[0]
    assert found.seen == "own: ~/models of user"
    assert found.todo == "see ~/x"
    assert found.command == f"ls {tmp_path}/maria-old ~".replace("maria", "user")


def test_a_report_for_json_has_the_promised_fields() -> None:
    made = report.Report("0.1.0", "2026-10-01T00:00:00+00:00", (Check("os", "ok", "macOS 26"),)).as_dict()
    assert set(made) == {"ok", "version", "date", "checks"}
    assert set(made["checks"][0]) == {field.name for field in dataclasses.fields(Check)}
