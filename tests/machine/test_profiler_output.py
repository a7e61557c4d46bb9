"""Every report of system_profiler that was recorded, in both forms."""

import pytest
from recorded import RECORDINGS, recording

from dspark.machine.facts import CoreGroup
from dspark.machine.profiler_output import Report, profiler


def kinds(**counts: int) -> tuple[CoreGroup, ...]:
    return tuple(CoreGroup(name, count) for name, count in counts.items())


REPORTS = {
    "SPDisplays-json.m1-7gpu-khw": Report("Apple M1", gpu_cores=7),
    "SPDisplays-json.m1-pro-16gpu-3displays": Report("Apple M1 Pro", gpu_cores=16),
    "SPDisplays-json.m2-max-30gpu": Report("Apple M2 Max", gpu_cores=30),
    "SPDisplays-json.m4-mini-10gpu": Report("Apple M4", gpu_cores=10),
    "SPDisplays-lines.m1-7gpu-macos11": Report("Apple M1", gpu_cores=7),
    "SPDisplays-text.m1-8gpu": Report("Apple M1", gpu_cores=8),
    "SPDisplays-text.m2-max-38gpu": Report("Apple M2 Max", gpu_cores=38),
    "SPDisplays-text.m3-ultra-80gpu-macos27": Report("Apple M3 Ultra", gpu_cores=80),
    "SPDisplays-text.m4-max-40gpu-macos26": Report("Apple M4 Max", gpu_cores=40),
    "SPDisplays-text.m4-pro-16gpu": Report("Apple M4 Pro", gpu_cores=16),
    # Four parts stand in an order that the report does not name: only the total is sure.
    "SPHardware+SPDisplays-json.m2-pro-16gb-macos27": Report("Apple M2 Pro", 12, gpu_cores=19),
    "SPHardware-json.m2-ultra-64gb-proc4": Report("Apple M2 Ultra", 24),
    "SPHardware-json.m5-max-128gb": Report("Apple M5 Max", 18),
    "SPHardware+SPDisplays-text.m4-pro-48gb-20gpu": Report(
        "Apple M4 Pro", 14, kinds(Performance=10, Efficiency=4), gpu_cores=20
    ),
    "SPHardware-grep.m5-32gb-macos26": Report("Apple M5", 10, kinds(Super=4, Efficiency=6)),
    "SPHardware-json.m1-16gb": Report("Apple M1", 8, kinds(Performance=4, Efficiency=4)),
    "SPHardware-json.m2-16gb-macos14": Report("Apple M2", 8, kinds(Performance=4, Efficiency=4)),
    "SPHardware-json.m2-24gb-macos15": Report("Apple M2", 8, kinds(Performance=4, Efficiency=4)),
    "SPHardware-json.m4-16gb-fragment": Report(),  # keys cut off: neither JSON nor text
    "SPHardware-json.m4-max-48gb": Report("Apple M4 Max", 16, kinds(Performance=12, Efficiency=4)),
    "SPHardware-json.vm-m4-max-virtual": Report("Apple M4 Max (Virtual)", 2),
    "SPHardware-lines.m4-pro-48gb-tabs": Report("Apple M4 Pro", 14, kinds(Performance=10, Efficiency=4)),
    # In another language no label is known.
    "SPHardware-text.intel-macbookpro15-1-german": Report(),
    "SPHardware-text.intel-macmini7-1-german": Report(),
    "SPHardware-text.m1-max-and-m1-ultra": Report("Apple M1 Max", 10, kinds(Performance=8, Efficiency=2)),
    "SPHardware-text.m1-pro-16gb-mini": Report("Apple M1 Pro", 10, kinds(Performance=8, Efficiency=2)),
    "SPHardware-text.m2-pro-16gb-mini": Report("Apple M2 Pro", 12, kinds(Performance=8, Efficiency=4)),
    "SPHardware-text.m2-ultra-192gb-macos14.3": Report("Apple M2 Ultra", 24, kinds(Performance=16, Efficiency=8)),
    "SPHardware-text.m3-max-128gb-16core": Report("Apple M3 Max", 16, kinds(Performance=12, Efficiency=4)),
    "SPHardware-text.m3-max-36gb-14core": Report("Apple M3 Max", 14, kinds(Performance=10, Efficiency=4)),
    "SPHardware-text.m3-max-64gb-macos14": Report("Apple M3 Max", 16, kinds(Performance=12, Efficiency=4)),
    "SPHardware-text.m3-max-unindented": Report("Apple M3 Max", 16, kinds(Performance=12, Efficiency=4)),
    "SPHardware-text.m4-max-capitalized": Report("Apple M4 Max", 16, kinds(Performance=12, Efficiency=4)),
    "SPHardware-text.m4-pro-24gb-macos26": Report("Apple M4 Pro", 14, kinds(Performance=10, Efficiency=4)),
    "SPHardware-text.m5-max-128gb-oneline": Report("Apple M5 Max", 18, kinds(Super=6, Performance=12)),
    "SPHardware-text.vm-tart-macos14": Report(cores=4),
    "lines.m1-pro-8core-14gpu-16gb-macos14": Report(
        "Apple M1 Pro", 8, kinds(Performance=6, Efficiency=2), gpu_cores=14
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_report(name: str) -> None:
    assert profiler(recording(f"system_profiler.{name}")) == REPORTS[name]


def test_every_recording_has_its_answer_here() -> None:
    recorded = {file.stem.removeprefix("system_profiler.") for file in RECORDINGS.glob("system_profiler.*.txt")}
    assert recorded == set(REPORTS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Report()),
        ("[]", Report()),
        ('{"SPHardwareDataType": []}', Report()),
        ('{"SPHardwareDataType": [7], "SPDisplaysDataType": [{"sppci_cores": "12"}]}', Report(gpu_cores=12)),
        ('{"SPHardwareDataType": [{"soc_type": "Apple M7", "number_processors": "proc 9:x"}]}', Report()),
        ('{"SPHardwareDataType": [{"chip_type": "Apple M7", "number_processors": null}]}', Report("Apple M7")),
        ('{"SPHardwareDataType": [{"chip_type": "Apple M7", "number_processors": 1e999}]}', Report("Apple M7")),
        (f'{{"SPHardwareDataType": [{{"number_processors": "proc {"9" * 5000}"}}]}}', Report()),
        (f"Chip: Apple M7\nTotal Number of Cores: {'9' * 5000}", Report("Apple M7")),
        ("[" * 100_000, Report()),
        ('{"SPDisplaysDataType": [{"sppci_model": "Intel Iris", "sppci_cores": "many"}]}', Report()),
    ],
)
def test_n6_missing_and_renamed_keys_leave_only_their_own_field_unknown(text: str, expected: Report) -> None:
    assert profiler(text) == expected
