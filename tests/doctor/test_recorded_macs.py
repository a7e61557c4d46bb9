"""The doctor on Macs as they were recorded: field by field the right answer, or the word unknown."""

from collections.abc import Callable

import pytest
from machine.recorded import RecordedMac, recording

from dspark.doctor import Address, examine, hardware
from dspark.doctor.check import Check, Subject
from dspark.doctor.probe import Stack
from dspark.doctor.storage import room
from dspark.machine import watch
from dspark.machine.darwin import Darwin
from dspark.machine.facts import Runtime
from dspark.machine.volume import read_df

METAL = Stack(Runtime("3.12.1", "0.1.0", "0.32.4", "0.32.2", "gpu", "Apple M3 Max", "applegpu_g15s"))
NOBODY = Address(port=9)


def examined(mac: Callable[..., str | None], architecture: str = "arm64") -> dict[str, Check]:
    """The whole examination."""
    return {check.id: check for check in examine(NOBODY, Darwin(mac, architecture), lambda: METAL).checks}


def seen(mac: RecordedMac, architecture: str = "arm64") -> dict[str, Check]:
    """What is said of the machine alone."""
    here = Darwin(mac, architecture)
    system, memory, conditions = here.system(), here.memory(), watch.glance(here, seconds=0)
    checks = [
        hardware.architecture(system),
        hardware.operating_system(system),
        hardware.device(METAL, system),
        *(check(memory) for check in (hardware.memory, hardware.pressure, hardware.swap)),
        *(check(conditions) for check in (hardware.power, hardware.heat)),
    ]
    return {check.id: check for check in checks if check}


def test_a_healthy_laptop_on_mains_is_well() -> None:
    mac = RecordedMac(
        "sysctl.m2-max-64gb-macos26.6",
        "sysctl.swap-and-pressure.mac-normal",
        vm_stat="vm_stat.64gb-applesilicon-full",
        batt="pmset-batt.laptop-ac-notcharging",
        g="pmset-g.macbook-highpower",
        therm="pmset-therm.applesilicon-nominal",
    )
    found = examined(mac)
    named = ("architecture", "os", "device", "memory", "pressure", "swap", "power", "thermal")
    assert {name: found[name].status for name in named} == dict.fromkeys(named, "ok")
    assert found["os"].seen == "macOS 26.6.2"
    assert found["memory"].seen.startswith("64.0 GiB")
    assert found["pressure"].seen == "normal"
    assert found["power"].seen == "mains, energy mode high"


def test_a_virtual_machine_of_a_ci_service() -> None:
    mac = RecordedMac("sysctl.vm-guest-hv", profiler=("system_profiler.SPHardware-json.vm-m4-max-virtual",))
    found = seen(mac)
    assert "virtual machine" in found["os"].seen
    assert found["device"].status == "warn"
    assert "hang" in (found["device"].todo or "")


def test_an_intel_mac_is_told_that_mlx_needs_another() -> None:
    found = seen(RecordedMac("sysctl.intel-i9-macbookpro16-1"), "x86_64")
    assert found["architecture"].status == "fail"
    assert "Intel" in found["architecture"].seen


def test_a_translated_process() -> None:
    found = seen(RecordedMac("sysctl.m4-16gb-macos27", "sysctl.proc_translated: 1"), "x86_64")
    assert found["architecture"].status == "fail"
    assert "Rosetta" in found["architecture"].seen


def test_n6_labels_in_german_change_nothing() -> None:
    mac = RecordedMac(
        "sysctl.intel-i9-macbookpro16-1", profiler=("system_profiler.SPHardware-text.intel-macbookpro15-1-german",)
    )
    found = examined(mac, "x86_64")
    assert [check.id for check in found.values() if check.status == "fail"] == ["architecture"]
    assert "failed" not in str(found)


@pytest.mark.parametrize(
    ("lines", "used"),
    [
        (("sysctl.swap-and-pressure.16gb-high-swap", "hw.memsize: 17179869184"), "11.7 GiB"),
        (("sysctl.swapusage.16gb-swapheavy", "hw.memsize: 17179869184"), "21.9 GiB"),
        (("sysctl+memory_pressure.warning-37pct", "hw.memsize: 17179869184"), "15.0 GiB"),
    ],
)
def test_a_mac_that_swaps_heavily(lines: tuple[str, ...], used: str) -> None:
    found = seen(RecordedMac(*lines))
    assert found["swap"].status == "warn"
    assert found["swap"].seen.startswith(f"{used} used")


@pytest.mark.parametrize("name", ["sysctl.pressure.16gb-warning-level2", "sysctl+memory_pressure.warning-37pct"])
def test_memory_pressure_of_level_2(name: str) -> None:
    found = seen(RecordedMac(name))["pressure"]
    assert (found.status, found.seen) == ("warn", "warning")


def test_k8_an_unexpected_level_is_unknown() -> None:
    found = seen(RecordedMac("kern.memorystatus_vm_pressure_level: 3"))["pressure"]
    assert (found.status, found.seen) == ("ok", "unknown")


def test_k1_a_raised_wired_limit_is_told() -> None:
    found = seen(RecordedMac("sysctl.wired-limit.raised-m-128gb", "hw.memsize: 137438953472"))
    assert "GPU limit set to" in found["memory"].seen


def test_a_throttled_mac_and_one_that_shows_no_limit() -> None:
    assert seen(RecordedMac("hw.memsize: 1", therm="pmset-therm.12core-throttled"))["thermal"].status == "warn"
    for calm in ("nominal-with-limits", "error", "warning-recorded"):
        name = f"pmset-therm.{'12core-' if 'limits' in calm else ''}{calm}"
        assert seen(RecordedMac("hw.memsize: 1", therm=name))["thermal"].seen == "thermal pressure unknown"


def test_low_power_mode_on_battery() -> None:
    mac = RecordedMac("hw.memsize: 1", batt="pmset-batt.laptop-discharging", custom="pmset-custom.laptop-lowpower-on")
    found = seen(mac)["power"]
    assert (found.status, found.seen) == ("warn", "battery, energy mode low")


def test_a_mac_that_answers_nothing_still_gets_a_report() -> None:
    found = examined(lambda *command: None)
    assert {found[name].seen for name in ("pressure", "swap")} == {"unknown"}
    assert not [check for check in found.values() if check.status == "fail"]


@pytest.mark.parametrize(
    ("name", "mount", "gib"),
    [
        ("df-h.macbook-1tb-macos26", "/System/Volumes/Data", 431),
        ("df-h.macbook-1tb-external-volume", "/System/Volumes/Data", 597),
        ("df-h.macbook-1tb-external-volume", "/Volumes/VS Code", 93 / 1024),
        ("df-h.macbook-nearly-full-noinodes", "/System/Volumes/Data", 571),
        ("df-h.gnu-coreutils-on-mac", "/", 466),
        ("df-k.m3-ultra-8tb-macos27", "/System/Volumes/Data", 1_000_000 / 1024**2),
    ],
)
def test_room_on_recorded_disks(name: str, mount: str, gib: float) -> None:
    volumes = {volume.mount: volume for volume in read_df(recording(name))}
    assert volumes[mount].free_bytes == pytest.approx(gib * 1024**3, rel=1e-6)


def test_a_nearly_full_disk_warns_however_large_it_is(home) -> None:
    (full,) = read_df(recording("df-k.m3-ultra-8tb-macos27"))
    check = room(Subject("disk.1", "Disk"), home / "models", home, full)
    assert check.status == "warn"
    assert "1.0 GiB free" in check.seen
    assert "/System/Volumes/Data" in check.seen


def test_the_disk_of_a_ci_runner() -> None:
    line = recording("machine-lines.gha-macos-26-vm").splitlines()[-1]
    (volume,) = read_df(f"Filesystem 1024-blocks Used Available Capacity iused ifree %iused  Mounted on\n{line}")
    assert volume.free_bytes == 200_018_376 * 1024
