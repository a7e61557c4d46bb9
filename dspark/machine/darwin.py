"""macOS."""

import os
import platform
from collections.abc import Callable

from dspark.machine import darwin_output as read
from dspark.machine import shell
from dspark.machine.facts import Chip, Limit, Memory, Power, Pressure, Strain, System, Thermal
from dspark.machine.profiler_output import profiler

SYSCTL = "/usr/sbin/sysctl"
LEVEL_KEYS = tuple(
    f"hw.perflevel{level}.{field}" for level in range(read.MAX_LEVELS) for field in ("name", "physicalcpu")
)
# Mini detail leaves serial numbers out; JSON keys do not change with the language of the system, as the labels do.
PROFILER = ("/usr/sbin/system_profiler", "-json", "-detailLevel", "mini", "SPHardwareDataType", "SPDisplaysDataType")
IOREG = ("/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
SW_VERS = ("/usr/bin/sw_vers",)
VM_STAT = ("/usr/bin/vm_stat",)
FOOTPRINT = ("/usr/bin/footprint", "-f", "bytes", "--noCategories", "-p")
PMSET = "/usr/bin/pmset"
THERMAL = (
    "/usr/bin/notifyutil",
    "-g",
    "com.apple.system.thermalpressurelevel",
)  # needs no administrator, unlike powermetrics
MIB = 1024**2


class Darwin:
    """Answers from sysctl, vm_stat and ioreg, and from the slower system_profiler where those leave something open."""

    def __init__(
        self, output: Callable[..., str | None] = shell.output, architecture: str = platform.machine()
    ) -> None:
        self._output = output
        self._architecture = architecture

    def chip(self) -> Chip:
        values = self._sysctl("machdep.cpu.brand_string", "hw.physicalcpu", "hw.ncpu", "hw.nperflevels", *LEVEL_KEYS)
        groups = read.core_groups(values)
        counts = [group.count for group in groups]
        name = values.get("machdep.cpu.brand_string") or None
        cores = read.number(values.get("hw.physicalcpu"))
        if cores is None and counts:
            cores = None if None in counts else sum(count for count in counts if count)
        gpu_cores = read.ioreg_gpu_cores(self._output(*IOREG) or "")
        # A translated process is shown an invented name, the same on every chip.
        hidden = name is None or name.startswith("VirtualApple")
        if hidden or cores is None or gpu_cores is None:
            report = profiler(self._output(*PROFILER) or "")
            name = (report.chip or name) if hidden else name
            cores = cores or report.cores
            groups = groups or report.groups
            gpu_cores = gpu_cores or report.gpu_cores
        return Chip(name, cores, groups, usable_cores=read.number(values.get("hw.ncpu")), gpu_cores=gpu_cores)

    def system(self) -> System:
        values = self._sysctl(
            "kern.osproductversion",
            "sysctl.proc_translated",
            "hw.optional.arm64",
            "kern.hv_vmm_present",
            "kern.version",
        )
        version = values.get("kern.osproductversion") or read.product_version(self._output(*SW_VERS) or "")
        virtual = read.flag(values.get("kern.hv_vmm_present"))
        if virtual is None:
            virtual = read.virtual_kernel(values.get("kern.version", ""))
        translated = read.flag(values.get("sysctl.proc_translated"))
        # The sysctl program may itself run natively below a translated shell.
        if self._architecture == "x86_64" and read.flag(values.get("hw.optional.arm64")):
            translated = True
        return System(
            name="macOS",
            version=version,
            architecture=self._architecture or None,
            translated=translated,
            virtual=virtual,
        )

    def memory(self) -> Memory:
        values = self._sysctl(
            "hw.memsize", "vm.swapusage", "kern.memorystatus_vm_pressure_level", "iogpu.wired_limit_mb"
        )
        page_size, counters = read.vm_stat(self._output(*VM_STAT) or "")
        swap_total, swap_used = read.swap_usage(values.get("vm.swapusage"))
        wired_limit = read.number(values.get("iogpu.wired_limit_mb"))
        return Memory(
            total_bytes=read.number(values.get("hw.memsize")),
            available_bytes=read.available_bytes(page_size, counters),
            pressure=_pressure(values),
            swap_total_bytes=swap_total,
            swap_used_bytes=swap_used,
            swapped_in_bytes=read.counted_bytes("Swapins", page_size, counters),
            swapped_out_bytes=read.counted_bytes("Swapouts", page_size, counters),
            gpu_wired_limit_bytes=None if wired_limit is None else wired_limit * MIB,
        )

    def strain(self) -> Strain:
        values = self._sysctl("vm.swapusage", "kern.memorystatus_vm_pressure_level")
        return Strain(_pressure(values), read.swap_usage(values.get("vm.swapusage"))[1])

    def limits(self) -> tuple[Limit, ...]:
        return ()  # macOS does not enforce those on memory

    def footprint_bytes(self) -> int | None:
        pid = os.getpid()
        return read.phys_footprint(self._output(*FOOTPRINT, str(pid)) or "", pid)

    def power(self) -> Power:
        source = read.power_source(self._output(PMSET, "-g", "batt") or "")
        # What is in use now; where that is not told, what was set for the present source.
        mode = read.power_mode(self._output(PMSET, "-g") or "", source)
        if mode is None:
            mode = read.power_mode(self._output(PMSET, "-g", "custom") or "", source)
        thermal = self._thermal_pressure()
        if thermal in (None, "nominal"):
            thermal = read.thermal_limit(self._output(PMSET, "-g", "therm") or "") or thermal
        return Power(source, mode, thermal)

    def _thermal_pressure(self) -> Thermal | None:
        level = read.thermal_pressure(self._output(*THERMAL) or "")
        # 0 is also what a name that nobody publishes shows, and no one does in a virtual machine.
        return None if level == "nominal" and self.system().virtual else level

    def _sysctl(self, *keys: str) -> dict[str, str]:
        return read.sysctl(self._output(SYSCTL, *keys) or "")


def _pressure(values: dict[str, str]) -> Pressure | None:
    level = read.number(values.get("kern.memorystatus_vm_pressure_level"))
    return None if level is None else read.PRESSURE.get(level)
