"""Chips, systems and memory as recorded on Macs from M1 to M6, Intel ones and virtual ones."""

import dataclasses

import pytest
from recorded import RecordedMac, recording

from dspark.machine import darwin_output as read
from dspark.machine.darwin import Darwin
from dspark.machine.facts import Chip, CoreGroup, Memory, Power, System

GIB = 1024**3


def groups(**counts: int | None) -> tuple[CoreGroup, ...]:
    return tuple(CoreGroup(name, count) for name, count in counts.items())


MACS = {
    "M1, macOS 11: no levels, an internal GPU name": (
        RecordedMac(
            "sysctl.m1-glpi-macos11",
            profiler=("system_profiler.SPHardware-json.m1-16gb", "system_profiler.SPDisplays-json.m1-7gpu-khw"),
        ),
        Chip("Apple M1", 8, groups(Performance=4, Efficiency=4), gpu_cores=7),
    ),
    "M1 Pro, macOS 12: levels without names, listed backwards": (
        RecordedMac(
            "sysctl.hw.m1-pro-10core-2022", "machdep.cpu.brand_string: Apple M1 Pro", ioreg="ioreg-AGX.m1-pro-16gpu"
        ),
        Chip("Apple M1 Pro", 10, (CoreGroup(None, 8), CoreGroup(None, 2)), usable_cores=10, gpu_cores=16),
    ),
    "M1 Pro: three displays below one GPU": (
        RecordedMac(
            "machdep.cpu.brand_string: Apple M1 Pro",
            profiler=("system_profiler.SPDisplays-json.m1-pro-16gpu-3displays",),
        ),
        Chip("Apple M1 Pro", gpu_cores=16),
    ),
    "M1 Max": (
        RecordedMac("machdep.cpu.brand_string: Apple M1 Max", ioreg="ioreg-AGX.m1-max-64gb-32gpu"),
        Chip("Apple M1 Max", gpu_cores=32),
    ),
    "M2 Pro, macOS 27: four-part processor count, an unknown key": (
        RecordedMac(
            "sysctl.m2-pro-16gb-swap-unknownoid",
            profiler=("system_profiler.SPHardware+SPDisplays-json.m2-pro-16gb-macos27",),
        ),
        Chip("Apple M2 Pro", 12, (CoreGroup(None, 8), CoreGroup(None, 4)), gpu_cores=19),
    ),
    "M2 Max with 30 GPU cores": (
        RecordedMac("sysctl.m2-max-64gb-macos26.6", profiler=("system_profiler.SPDisplays-json.m2-max-30gpu",)),
        Chip("Apple M2 Max", 12, (CoreGroup(None, 8), CoreGroup(None, 4)), usable_cores=12, gpu_cores=30),
    ),
    "M2 Ultra: only the profiler answers": (
        RecordedMac(profiler=("system_profiler.SPHardware-json.m2-ultra-64gb-proc4",)),
        Chip("Apple M2 Ultra", 24),
    ),
    "M3 Pro: aligned columns": (
        RecordedMac("sysctl.m3-pro-11core", "machdep.cpu.brand_string: Apple M3 Pro", ioreg="ioreg-AGX.m3-pro-14gpu"),
        Chip("Apple M3 Pro", 11, groups(Performance=5, Efficiency=6), gpu_cores=14),
    ),
    "M3 Ultra: GPU unknown": (
        RecordedMac("sysctl.m3-ultra-96gb-60gpu"),
        Chip("Apple M3 Ultra", 28, (CoreGroup(None, 20), CoreGroup(None, 8)), usable_cores=28),
    ),
    "M4": (
        RecordedMac("sysctl.m4-16gb-macos27", ioreg="ioreg-AGX.m4-10gpu"),
        Chip("Apple M4", gpu_cores=10),
    ),
    "M4 mini without a display": (
        RecordedMac("sysctl.m4-16gb-macos27", profiler=("system_profiler.SPDisplays-json.m4-mini-10gpu",)),
        Chip("Apple M4", gpu_cores=10),
    ),
    "M4: a report that is not JSON": (
        RecordedMac("sysctl.m4-16gb-macos27", profiler=("system_profiler.SPHardware-json.m4-16gb-fragment",)),
        Chip("Apple M4"),
    ),
    "M4 Pro: no brand in the excerpt": (
        RecordedMac("sysctl.hw-machdep.m4-pro-12core-24gb"),
        Chip(None, 12, groups(Performance=8, Efficiency=4), usable_cores=12),
    ),
    "M4 Max": (
        RecordedMac(profiler=("system_profiler.SPHardware-json.m4-max-48gb",)),
        Chip("Apple M4 Max", 16, groups(Performance=12, Efficiency=4)),
    ),
    "M5": (
        RecordedMac("sysctl.m5-10core-24gb-macos26.6", ioreg="ioreg-AGX.m5-10gpu"),
        Chip("Apple M5", 10, groups(Super=4, Efficiency=6), usable_cores=10, gpu_cores=10),
    ),
    "M5 Pro: names without counts": (
        RecordedMac("sysctl.perflevels.m5-pro-15core", "machdep.cpu.brand_string: Apple M5 Pro"),
        Chip("Apple M5 Pro", None, groups(Super=None, Performance=None)),
    ),
    "M5 Max: the second level is Performance": (
        RecordedMac(
            "sysctl.perflevels.m5-max-18core",
            ioreg="ioreg-AGX.m5-max-40gpu",
            profiler=("system_profiler.SPHardware-json.m5-max-128gb",),
        ),
        Chip("Apple M5 Max", 18, groups(Super=6, Performance=12), gpu_cores=40),
    ),
    "M6: three levels": (
        RecordedMac("sysctl.perflevels.m6-12core-three-levels", "machdep.cpu.brand_string: Apple M6"),
        Chip("Apple M6", 12, groups(Super=2, Performance=4, Efficiency=6)),
    ),
    "Intel, German": (
        RecordedMac(
            "sysctl.intel-i9-macbookpro16-1",
            ioreg="ioreg-IOAccelerator.intel-mac-amd",
            profiler=("system_profiler.SPHardware-text.intel-macbookpro15-1-german",),
        ),
        Chip("Intel(R) Core(TM) i9-9980HK CPU @ 2.40GHz", 8, usable_cores=16),
    ),
    "virtual: an integer processor count": (
        RecordedMac(profiler=("system_profiler.SPHardware-json.vm-m4-max-virtual",)),
        Chip("Apple M4 Max (Virtual)", 2),
    ),
    "Rosetta: the brand is invented": (
        RecordedMac(
            "machdep.cpu.brand_string: VirtualApple @ 2.50GHz",
            profiler=("system_profiler.SPHardware-json.m1-16gb",),
        ),
        Chip("Apple M1", 8, groups(Performance=4, Efficiency=4)),
    ),
    "M1 Pro: every cpu key": (
        RecordedMac("sysctl.m1-pro-10core", ioreg="ioreg-AGX.m1-pro-16gpu"),
        Chip("Apple M1 Pro", 10, (CoreGroup(None, 8), CoreGroup(None, 2)), usable_cores=10, gpu_cores=16),
    ),
    "M2 Pro: as many cores as levels": (
        RecordedMac("sysctl.m2-pro-16gb-hv"),
        Chip("Apple M2 Pro", 12, (CoreGroup(None, 8), CoreGroup(None, 4))),
    ),
    "M2 Max with 38 GPU cores: cores by levels alone": (
        RecordedMac("sysctl.m2-max-64gb-macos15.5", profiler=("system_profiler.SPDisplays-text.m2-max-38gpu",)),
        Chip("Apple M2 Max", 12, (CoreGroup(None, 8), CoreGroup(None, 4)), gpu_cores=38),
    ),
    "M3 Max with 40 GPU cores": (
        RecordedMac(profiler=("system_profiler.SPHardware-text.m3-max-128gb-16core",)),
        Chip("Apple M3 Max", 16, groups(Performance=12, Efficiency=4)),
    ),
    "M3 Ultra, macOS 27": (RecordedMac("sysctl.m3-ultra-512gb-macos27"), Chip("Apple M3 Ultra")),
    "M4 Max with 40 GPU cores": (
        RecordedMac(
            "machdep.cpu.brand_string: Apple M4 Max", profiler=("system_profiler.SPDisplays-text.m4-max-40gpu-macos26",)
        ),
        Chip("Apple M4 Max", gpu_cores=40),
    ),
    "M1: features only, no perflevels": (RecordedMac("sysctl.hw-optional.m1-macos11"), Chip()),
    "virtual, hosted runner": (
        RecordedMac("machdep.cpu.brand_string: Apple M1 (Virtual)", "hw.physicalcpu: 3", "hw.ncpu: 3"),
        Chip("Apple M1 (Virtual)", 3, usable_cores=3),
    ),
    "nothing answers": (RecordedMac(), Chip()),
}


@pytest.mark.parametrize("name", MACS)
def test_chip(name: str) -> None:
    mac, expected = MACS[name]
    assert Darwin(mac, "arm64").chip() == expected


def test_the_slow_report_is_not_asked_for_when_nothing_is_open() -> None:
    mac, _ = MACS["M5"]
    mac.asked.clear()
    Darwin(mac, "arm64").chip()
    assert mac.asked == ["sysctl", "ioreg"]


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("Apple M3 Max", "M3"),
        ("Apple M10", "M10"),
        ("Apple A18 Pro", "A18"),
        ("Apple M1 (Virtual)", "M1"),
        ("Apple processor", None),
        ("VirtualApple @ 2.50GHz", None),
        ("AMD EPYC", None),
        (None, None),
    ],
)
def test_generation(name: str | None, generation: str | None) -> None:
    assert Chip(name).generation == generation


@pytest.mark.parametrize(
    ("lines", "architecture", "translated"),
    [
        (["sysctl.proc_translated: 0"], "arm64", False),
        (["sysctl.proc_translated: 1"], "x86_64", True),
        # The program asked was native, this process is not.
        (["sysctl.proc_translated: 0", "hw.optional.arm64: 1"], "x86_64", True),
        (["sysctl: unknown oid 'sysctl.proc_translated'"], "x86_64", None),
        ([], "arm64", None),
    ],
)
def test_translation(lines: list[str], architecture: str, translated: bool | None) -> None:
    assert Darwin(RecordedMac(*lines), architecture).system().translated is translated


@pytest.mark.parametrize(
    ("chip", "cores"),
    [
        (Chip(groups=groups(Performance=12, Efficiency=4)), 12),
        (Chip(groups=groups(Super=4, Efficiency=6)), 4),
        (Chip(groups=groups(Super=6, Performance=12)), 18),
        (Chip(groups=groups(Super=2, Performance=4, Efficiency=6)), 6),
        (Chip(groups=(CoreGroup(None, 8), CoreGroup(None, 2))), 8),
        (Chip(groups=groups(Super=None, Performance=None)), None),
        (Chip(), None),
    ],
)
def test_performance_cores(chip: Chip, cores: int | None) -> None:
    assert chip.performance_cores == cores


@pytest.mark.parametrize(
    ("uname", "virtual"),
    [
        ("uname-a.gha-macos-14-vm", True),
        ("uname-a.gha-macos-15-vm", True),
        ("machine-lines.gha-macos-26-vm", True),
        ("uname-a.m2-macos26.5", False),
        ("uname-a.m3-pro-macos26.5", False),
        ("uname-a.m4-macos26.5", False),
        ("uname-a.m5-macos26.5", False),
        ("uname-a.m5-pro-or-max-macos26.6", False),
        ("uname-a.intel-macos13", None),
        ("uname-a.intel-macos14", None),
    ],
)
def test_a_virtual_machine_is_known_by_its_kernel_where_the_key_is_missing(uname: str, virtual: bool | None) -> None:
    mac = RecordedMac(f"kern.version: {recording(uname).splitlines()[0]}")
    assert Darwin(mac, "arm64").system().virtual is virtual


@pytest.mark.parametrize(
    ("sw_vers", "version"), [("sw_vers.macos26.5.1", "26.5.1"), ("sw_vers.macos26.6", "26.6"), ("", None)]
)
def test_version_where_the_key_is_missing(sw_vers: str, version: str | None) -> None:
    assert Darwin(RecordedMac(sw_vers=sw_vers), "arm64").system().version == version


@pytest.mark.parametrize(
    ("line", "translated"),
    [("sysctl.proc_translated: 0", False), ("sysctl.proc_translated: 1", True), ("sysctl: unknown oid", None)],
)
def test_three_cases_of_rosetta(line: str, translated: bool | None) -> None:
    recorded = next(text for text in recording("sysctl.proc_translated.three-cases").splitlines() if line in text)
    assert Darwin(RecordedMac(recorded), "arm64").system().translated is translated


def test_systems() -> None:
    assert Darwin(RecordedMac("sysctl.hv.apple-silicon-host"), "arm64").system().virtual is False
    native = RecordedMac("sysctl.m2-max-64gb-macos26.6", "kern.hv_vmm_present: 0")
    assert Darwin(native, "arm64").system() == System("macOS", "26.6.2", "arm64", virtual=False)
    assert Darwin(RecordedMac("sysctl.vm-guest-hv"), "arm64").system() == System("macOS", None, "arm64", virtual=True)


def test_memory_of_a_mac_with_tagged_pages() -> None:
    mac = RecordedMac(
        "hw.memsize: 51539607552", "sysctl.swap-and-pressure.mac-normal", vm_stat="vm_stat.m5-pro-48gb-mte"
    )
    assert Darwin(mac, "arm64").memory() == Memory(
        total_bytes=48 * GIB,
        available_bytes=(167743 + 431704 + 14563) * 16384,
        pressure="normal",
        swap_total_bytes=GIB,
        swap_used_bytes=GIB // 2,
        swapped_in_bytes=44078599 * 16384,
        swapped_out_bytes=77484917 * 16384,
    )


@pytest.mark.parametrize(
    ("vm_stat", "available_bytes"),
    [
        ("vm_stat.64gb-applesilicon-full", (450375 + 559798 + 12321) * 16384),
        ("vm_stat.8gb-applesilicon-full", (3842 + 92019 + 14023) * 16384),
        ("vm_stat.intel-vm-32gb-4k", (6127229 + 1080348 + 11820) * 4096),
        ("vm_stat.16gb-heavy-compressor-partial", (6107 + 166230 + 12686) * 16384),
        ("vm_stat.32gb-applesilicon-partial", (13517 + 296462 + 2) * 16384),
        ("vm_stat.m5-pro-48gb-mte-lowfree", (50667 + 486128 + 16362) * 16384),
        ("vm_stat.64gb-applesilicon-partial", None),  # these leave the file cache out
        ("vm_stat.8gb-applesilicon-longuptime-head", None),
        ("vm_stat.applesilicon-tagstorage-partial", None),
        ("vm_stat.16gb-applesilicon-head", None),  # cut before the file cache: not enough to say
        ("", None),
    ],
)
def test_available_memory(vm_stat: str, available_bytes: int | None) -> None:
    assert Darwin(RecordedMac(vm_stat=vm_stat), "arm64").memory().available_bytes == available_bytes


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["sysctl.pressure.16gb-warning-level2"], "warning"),
        (["sysctl.pressure.10core-16gb"], "warning"),
        (["sysctl.swap-and-pressure.mac-normal"], "normal"),
        (["sysctl.swap-and-pressure.16gb-high-swap"], "normal"),
        (["sysctl+memory_pressure.warning-37pct"], "warning"),
        (["kern.memorystatus_vm_pressure_level: 4"], "critical"),
        (["kern.memorystatus_vm_pressure_level: 3"], None),
        ([], None),
    ],
)
def test_pressure(lines: list[str], expected: str | None) -> None:
    assert Darwin(RecordedMac(*lines), "arm64").memory().pressure == expected


@pytest.mark.parametrize(
    ("lines", "limit"),
    [
        (["sysctl.wired-limit.raised-m-128gb"], 118000 * 1024**2),
        (["sysctl.m2-max-64gb-macos15.5"], 0),
        (["sysctl.m2-pro-mini-32gb-macos26.5.1"], 0),
        (["sysctl.m3-ultra-512gb-macos27"], 0),
        (["sysctl.write-wired-limit"], None),  # what a change prints: not a reading
        ([], None),
    ],
)
def test_gpu_wired_limit(lines: list[str], limit: int | None) -> None:
    assert Darwin(RecordedMac(*lines), "arm64").memory().gpu_wired_limit_bytes == limit


@pytest.mark.parametrize(
    ("sysctl", "total_mib", "used_mib"),
    [
        ("sysctl.m2-pro-16gb-swap-unknownoid", 23552, 23181.62),
        ("sysctl.swapusage.16gb-swapheavy", 23552, 22392.56),
        ("sysctl.swap-and-pressure.16gb-high-swap", 12800, 11947.44),
        ("sysctl+memory_pressure.warning-37pct", 16384, 15348.81),
        ("sysctl.pressure.16gb-warning-level2", 14336, 13262.06),
    ],
)
def test_large_swap(sysctl: str, total_mib: int, used_mib: float) -> None:
    found = Darwin(RecordedMac(sysctl), "arm64").memory()
    assert found.swap_total_bytes == total_mib * 1024**2
    assert found.swap_used_bytes == int(used_mib * 1024**2)


@pytest.mark.parametrize(
    ("sysctl", "total_gib"),
    [
        ("sysctl.m4-16gb-macos27", 16),
        ("sysctl.m5-10core-24gb-macos26.6", 24),
        ("sysctl.m3-ultra-96gb-60gpu", 96),
        ("sysctl.m3-ultra-512gb-macos27", 512),
        ("sysctl.intel-i9-macbookpro16-1", 32),
        ("sysctl.vm-excerpt.16gb-applesilicon", None),
    ],
)
def test_total_memory(sysctl: str, total_gib: int | None) -> None:
    total = Darwin(RecordedMac(sysctl), "arm64").memory().total_bytes
    assert total == (None if total_gib is None else total_gib * GIB)


def test_a_mac_without_any_answer_is_unknown_throughout() -> None:
    def nothing(*command: str) -> None:
        return None

    mac = Darwin(nothing, "arm64")
    assert mac.chip() == Chip()
    assert mac.system() == System("macOS", architecture="arm64")
    assert mac.power() == Power()
    assert all(value is None for value in dataclasses.asdict(mac.memory()).values())


@pytest.mark.parametrize(
    ("batt", "source"),
    [
        ("pmset-batt.desktop", "mains"),
        ("pmset-batt.laptop-ac-attached-notcharging", "mains"),
        ("pmset-batt.laptop-ac-notcharging", "mains"),
        ("pmset-batt.laptop-discharging", "battery"),
        ("Now drawing from 'Tea Power'", None),
    ],
)
def test_power_source(batt: str, source: str | None) -> None:
    assert Darwin(RecordedMac(batt=batt), "arm64").power().source == source


@pytest.mark.parametrize(
    ("power", "mode"),
    [
        ({"g": "pmset-g.macbook-air"}, "normal"),
        ({"g": "pmset-g.macbook-pro-sleepprevented"}, "normal"),
        ({"g": "pmset-g.macbook-highpower"}, "high"),
        # Where what is in use is not told, the block of the present source counts.
        ({"custom": "pmset-custom.laptop-lowpower-on", "batt": "pmset-batt.laptop-discharging"}, "low"),
        ({"custom": "pmset-custom.highpower-capable-powermode", "batt": "pmset-batt.laptop-discharging"}, "normal"),
        ({"custom": "pmset-custom.studio-desktop", "batt": "pmset-batt.desktop"}, "normal"),
        ({"custom": "pmset-custom.studio-desktop", "batt": "pmset-batt.laptop-discharging"}, None),
        ({"custom": "pmset-custom.studio-desktop"}, None),  # the source is not known
        ({"g": "Currently in use:\n energymode 1\n"}, None),  # a key that was renamed
        ({"g": "Currently in use:\n powermode 7\n"}, None),
    ],
)
def test_power_mode(power: dict[str, str], mode: str | None) -> None:
    assert Darwin(RecordedMac(**power), "arm64").power().mode == mode


@pytest.mark.parametrize(
    ("power", "thermal"),
    [
        ({"therm": "pmset-therm.12core-throttled"}, "heavy"),
        # No limit and no warning prove nothing; a warning that was recorded is not the present state.
        ({"therm": "pmset-therm.12core-nominal-with-limits"}, None),
        ({"therm": "pmset-therm.applesilicon-nominal"}, None),
        ({"therm": "pmset-therm.applesilicon-three-notes"}, None),
        ({"therm": "pmset-therm.warning-recorded"}, None),
        ({"therm": "pmset-thermlog.level1"}, None),
        ({"therm": "pmset-therm.error"}, None),
        ({"notify": "com.apple.system.thermalpressurelevel 0\n"}, "nominal"),
        ({"notify": "com.apple.system.thermalpressurelevel 1\n"}, "moderate"),
        ({"notify": "com.apple.system.thermalpressurelevel 3\n"}, "critical"),
        ({"notify": "com.apple.system.thermalpressurelevel 9\n"}, None),
        ({"notify": "com.apple.system.thermalpressurelevel 0\n", "therm": "pmset-therm.12core-throttled"}, "heavy"),
    ],
)
def test_thermal_state(power: dict[str, str], thermal: str | None) -> None:
    assert Darwin(RecordedMac(**power), "arm64").power().thermal == thermal


def test_nobody_publishes_heat_in_a_virtual_machine() -> None:
    mac = RecordedMac("sysctl.vm-guest-hv", notify="com.apple.system.thermalpressurelevel 0\n")
    assert Darwin(mac, "arm64").power().thermal is None


@pytest.mark.parametrize("number", ["1.2.3", "9" * 400 + ".0", "9" * 5000], ids=["two points", "infinite", "endless"])
def test_a_number_that_is_none_leaves_its_own_field_unknown(number: str) -> None:
    swap = f"vm.swapusage: total = {number}M  used = 1.00M  free = 0.00M"
    memory = Darwin(RecordedMac(swap, "hw.memsize: 17179869184"), "arm64").memory()
    assert (memory.swap_total_bytes, memory.swap_used_bytes, memory.total_bytes) == (None, 1024**2, 16 * GIB)


def test_counts_that_never_end_are_unknown() -> None:
    endless = "9" * 5000
    assert read.ioreg_gpu_cores(f'"gpu-core-count" = {endless}') is None
    assert read.vm_stat(f"page size of {endless} bytes\nPages free: {endless}.\n") == (0, {})
    assert read.thermal_limit(f"CPU_Speed_Limit = {endless}") is None
