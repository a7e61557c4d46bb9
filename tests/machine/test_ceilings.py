"""What bounds this process, and what it takes: limits of containers and processes, pressure, footprints."""

import os
from pathlib import Path

import pytest
from recorded import RecordedMac, recording

from dspark.machine import darwin_output, heap
from dspark.machine.ceilings import binding, ceilings
from dspark.machine.darwin import Darwin
from dspark.machine.facts import Strain
from dspark.machine.linux import Linux
from dspark.machine.platform import Unknown, current

GIB = 1 << 30
PSI = "some avg10={some:.2f} avg60=0.00 avg300=0.00 total=1\nfull avg10={full:.2f} avg60=0.00 avg300=0.00 total=1\n"
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max data size             2147483648           unlimited            bytes
Max address space         unlimited            unlimited            bytes
Max open files            20000                20000                files
"""
STATUS = "VmSize:\t 9999999 kB\nVmData:\t 1048576 kB\nRssAnon:\t 524288 kB\nVmSwap:\t 1024 kB\n"
V2 = {
    "proc/self/cgroup": "0::/job\n",
    "sys/fs/cgroup/job/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/job/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {GIB}\n",
}
V1 = {
    "proc/self/cgroup": "4:memory:/job\n0::/\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{2 * GIB}\n",
}
MEMINFO = {"proc/meminfo": f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {8 * GIB // 1024} kB\n"}


def tree(root: Path, files: dict[str, str]) -> Linux:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Linux(root, "x86_64")


@pytest.mark.parametrize("files", [V2, V1], ids=["v2", "v1"])
def test_a_containers_limit_binds(tmp_path: Path, files: dict[str, str]) -> None:
    found = binding(ceilings(tree(tmp_path, MEMINFO | files)))
    assert found is not None
    assert (found.binds, found.limit_bytes, found.free_bytes) == ("the container's memory limit", 4 * GIB, 2 * GIB)


def test_the_processes_own_limit_binds(tmp_path: Path) -> None:
    here = tree(tmp_path, MEMINFO | {"proc/self/limits": LIMITS, "proc/self/status": STATUS})
    found = binding(ceilings(here))
    assert found is not None and "ulimit -d" in found.binds
    assert (found.limit_bytes, found.free_bytes) == (2 * GIB, GIB)
    assert here.footprint_bytes() == (512 + 1) << 20


def test_a_gpus_working_set_binds_by_what_mlx_holds() -> None:
    found = binding(ceilings(Unknown(), 16 * GIB, 10 * GIB))
    assert found is not None and (found.binds, found.room_bytes) == ("the GPU's working set", 6 * GIB)


def test_k8_without_readings_there_is_no_ceiling(tmp_path: Path) -> None:
    assert ceilings(Linux(tmp_path, "x86_64")) == ceilings(Unknown()) == ()
    assert binding(()) is None
    assert Linux(tmp_path, "x86_64").footprint_bytes() is None
    assert Linux(tmp_path, "x86_64").strain() == Unknown().strain() == Strain()


def test_the_groups_own_stalls_count_where_they_are_worse(tmp_path: Path) -> None:
    files = {"proc/pressure/memory": PSI.format(some=0, full=0), "proc/self/cgroup": "0::/job\n"}
    assert tree(tmp_path, files).strain().pressure == "normal"
    own = {"sys/fs/cgroup/job/memory.pressure": PSI.format(some=50, full=20)}
    assert tree(tmp_path, own).strain().pressure == "critical"


@pytest.mark.parametrize(
    ("name", "pressure", "swap_mib"),
    [
        ("sysctl.swap-and-pressure.mac-normal", "normal", 512.0),
        ("sysctl.pressure.16gb-warning-level2", "warning", 13262.06),
        ("sysctl+memory_pressure.warning-37pct", "warning", 15348.81),
        ("kern.memorystatus_vm_pressure_level: 4", "critical", None),
        ("kern.memorystatus_vm_pressure_level: 3", None, None),
    ],
)
def test_a_macs_strain(name: str, pressure: str | None, swap_mib: float | None) -> None:
    mac = RecordedMac(name)
    seen = Darwin(mac, "arm64").strain()
    assert seen.pressure == pressure
    assert seen.swap_used_bytes == (None if swap_mib is None else int(swap_mib * 2**20))
    assert mac.asked == ["sysctl"]


@pytest.mark.parametrize(
    ("name", "pid", "size"),
    [
        ("footprint.bytes-one-process", 56783, 1884592),
        ("footprint.bytes-denied-and-several", 640, 214483976),
        ("footprint.bytes-denied-and-several", 900, 10485760),
        ("footprint.bytes-denied-and-several", 418, None),
        ("footprint.formatted-units", 35425, 2273 * 1024),
        ("footprint.bytes-one-process", 1, None),
    ],
)
def test_phys_footprint(name: str, pid: int, size: int | None) -> None:
    assert darwin_output.phys_footprint(recording(name), pid) == size


def test_a_mac_tells_its_own_footprint() -> None:
    text = recording("footprint.bytes-one-process").replace("56783", str(os.getpid()))
    assert Darwin(lambda *command: text, "arm64").footprint_bytes() == 1884592
    assert Darwin(lambda *command: None, "arm64").footprint_bytes() is None


def test_this_process_takes_something_and_the_heap_can_be_trimmed() -> None:
    heap.trim()
    taken = current().footprint_bytes()
    assert taken is None or taken > 1 << 20
