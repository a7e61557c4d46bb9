"""Published figures are found by chip and GPU cores, or not at all."""

import pytest

from dspark.machine import bandwidth
from dspark.machine.chips import published


@pytest.mark.parametrize(
    ("chip", "gpu_cores", "gb_s"),
    [
        ("Apple M3 Max", 30, 300),
        ("Apple M3 Max", 40, 400),
        ("Apple M4 Max", 32, 410),
        ("Apple M4 Max", 40, 546),
        ("Apple M5 Max", 32, 460),
        ("Apple M5 Max", 40, 614),
        ("Apple M2 Ultra", 76, 800),
        ("Apple M5", 10, 153),
    ],
)
def test_bandwidth_by_chip_and_gpu_cores(chip: str, gpu_cores: int, gb_s: float) -> None:
    row = published(chip, gpu_cores)
    assert row is not None
    assert bandwidth.from_specification(row).gb_s == gb_s
    assert bandwidth.from_specification(row).source == "published"


@pytest.mark.parametrize(
    ("chip", "gpu_cores"),
    [
        ("Apple M4 Max", None),
        ("Apple M4 Max", 36),
        ("Apple M6", 10),
        ("Apple M9 Pro", 16),
        ("Apple M1 (Virtual)", 8),
        ("Apple processor", 8),
        ("AMD EPYC", None),
        (None, None),
    ],
)
def test_what_is_not_published_stays_unknown(chip: str | None, gpu_cores: int | None) -> None:
    assert published(chip, gpu_cores) is None  # field report N1: never the nearest row as a fact


def test_a_figure_says_how_far_it_was_checked() -> None:
    row = published("Apple M3 Max", 30)
    assert row is not None
    assert "300 GB/s and 96 GB recalled" in bandwidth.from_specification(row).method
