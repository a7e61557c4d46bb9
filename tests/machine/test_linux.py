"""Linux from a tree of files, in containers and out of them."""

from pathlib import Path

import pytest

from dspark.machine import linux_output
from dspark.machine.linux import Linux

CPUINFO = """processor\t: 0
model name\t: AMD EPYC 9575F 64-Core Processor
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx2 avx512f hypervisor

processor\t: 1
model name\t: AMD EPYC 9575F 64-Core Processor
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx2 avx512f hypervisor

processor\t: 2
model name\t: AMD EPYC 9575F 64-Core Processor
physical id\t: 0
core id\t\t: 1
flags\t\t: fpu avx2 avx512f hypervisor
"""
ARM_CPUINFO = "processor\t: 0\nBogoMIPS\t: 50.00\n\nprocessor\t: 1\nBogoMIPS\t: 50.00\n"
MEMINFO = """MemTotal:       16777216 kB
MemFree:         1000000 kB
MemAvailable:    8388608 kB
SwapTotal:       2097152 kB
SwapFree:        1048576 kB
HugePages_Total:       0
"""
GIB = 1024**3


def tree(root: Path, files: dict[str, str]) -> Linux:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Linux(root, "x86_64")


@pytest.fixture
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3}, raising=False)


@pytest.mark.usefixtures("on_linux")
def test_chip(tmp_path: Path) -> None:
    chip = tree(tmp_path, {"proc/cpuinfo": CPUINFO}).chip()
    assert (chip.name, chip.cores, chip.usable_cores) == ("AMD EPYC 9575F 64-Core Processor", 2, 2)
    assert "avx512f" in chip.features


@pytest.mark.usefixtures("on_linux")
def test_an_arm_chip_without_a_name(tmp_path: Path) -> None:
    here = tree(tmp_path, {"proc/cpuinfo": ARM_CPUINFO})
    assert (here.chip().name, here.chip().cores) == (None, 2)
    assert here.system().virtual is None


def test_system(tmp_path: Path) -> None:
    here = tree(tmp_path, {"proc/cpuinfo": CPUINFO, "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian 12"\n'})
    assert (here.system().label, here.system().virtual, here.system().translated) == ("Debian 12", True, False)


def test_memory(tmp_path: Path) -> None:
    found = tree(tmp_path, {"proc/meminfo": MEMINFO, "proc/vmstat": "pgin 7\npswpin 3\n"}).memory()
    assert (found.total_bytes, found.available_bytes) == (16 * GIB, 8 * GIB)
    assert (found.swap_total_bytes, found.swap_used_bytes) == (2 * GIB, GIB)
    assert found.swapped_in_bytes is not None and found.swapped_in_bytes > 3
    assert found.pressure is None


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/box/job\n",
            "sys/fs/cgroup/box/job/memory.max": "max\n",
            "sys/fs/cgroup/box/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/box/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/box/memory.stat": f"anon 5\ninactive_file {GIB}\n",
        },
        {
            "proc/self/cgroup": "5:cpu:/\n4:memory:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",  # a container sees its own group as the root
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
        },
    ],
    ids=["v2", "v1"],
)
def test_a_container_has_what_its_cgroup_allows(tmp_path: Path, files: dict[str, str]) -> None:
    found = tree(tmp_path, {"proc/meminfo": MEMINFO, **files}).memory()
    assert (found.total_bytes, found.available_bytes) == (4 * GIB, 2 * GIB)


def test_a_cgroup_without_a_limit_changes_nothing(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert tree(tmp_path, {"proc/meminfo": MEMINFO, **files}).memory().total_bytes == 16 * GIB


@pytest.mark.parametrize(
    ("some", "full", "expected"), [(0.0, 0.0, "normal"), (12.5, 0.0, "warning"), (60.0, 31.0, "critical")]
)
def test_pressure(some: float, full: float, expected: str) -> None:
    text = (
        f"some avg10={some:.2f} avg60=0.00 avg300=0.00 total=1\nfull avg10={full:.2f} avg60=0.00 avg300=0.00 total=1\n"
    )
    assert linux_output.pressure(text) == expected


@pytest.mark.usefixtures("on_linux")
def test_an_empty_tree_is_unknown_throughout(tmp_path: Path) -> None:
    here = Linux(tmp_path, "x86_64")
    assert (here.chip().name, here.chip().cores, here.system().version) == (None, None, None)
    assert (here.memory().total_bytes, here.memory().swap_used_bytes) == (None, None)


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"AC/type": "Mains\n", "AC/online": "1\n", "BAT0/type": "Battery\n", "BAT0/status": "Full\n"}, "mains"),
        (
            {"AC/type": "Mains\n", "AC/online": "0\n", "BAT0/type": "Battery\n", "BAT0/status": "Discharging\n"},
            "battery",
        ),
        ({"BAT0/type": "Battery\n", "BAT0/status": "Unknown\n"}, None),
        ({}, None),
    ],
)
def test_power_source(tmp_path: Path, files: dict[str, str], source: str | None) -> None:
    here = tree(tmp_path, {f"sys/class/power_supply/{name}": text for name, text in files.items()})
    assert here.power().source == source


@pytest.mark.parametrize(("profile", "mode"), [("low-power\n", "low"), ("balanced\n", "normal"), ("cool\n", None)])
def test_power_mode(tmp_path: Path, profile: str, mode: str | None) -> None:
    assert tree(tmp_path, {"sys/firmware/acpi/platform_profile": profile}).power().mode == mode
