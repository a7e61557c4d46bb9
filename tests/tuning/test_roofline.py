"""Ceilings, and which side of the roof binds."""

import json

import pytest

from dspark.targets.traffic import CacheLayers, Traffic
from dspark.tuning.roofline import Roofline, roofline

GB = 10**9
TRAFFIC = Traffic(
    weight_bytes=4 * GB,
    weights=8 * GB,
    head_bytes=0,
    expert_bytes=0,
    parameter_bytes=5 * GB,
    caches=(CacheLayers("full", 32, row_bytes=100_000),),
    context_window=40_000,
    source="checkpoint",
)


def test_ceilings_fall_with_what_is_read() -> None:
    found = roofline(TRAFFIC, 400.0, depth=10_000)
    assert [(one.depth, one.tokens_per_s) for one in found.ceilings] == [
        (0, 100.0),
        (10_000, pytest.approx(80.0)),
        (40_000, pytest.approx(50.0)),
    ]


def test_a_depth_beyond_the_window_is_the_window() -> None:
    given = roofline(TRAFFIC, 400.0, depth=10**9).given
    assert given is not None and given.depth == 40_000


def test_arithmetic_bounds_too() -> None:
    found = roofline(TRAFFIC, 400.0, 0.8)
    assert found.start.tokens_per_s == 50.0
    assert found.free_rows == 0.5
    assert found.verdict.startswith("Arithmetic binds") and "no free rows" in found.verdict


def test_rows_that_ride_along_free() -> None:
    assert roofline(TRAFFIC, 400.0, 16.0).free_rows == 10.0
    assert roofline(TRAFFIC, 400.0).free_rows is None


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (90.0, "Memory binds, reading the weights (100% of the bytes): at most 100 tokens/s at depth 0, and"),
        (30.0, "Neither memory nor arithmetic alone binds"),
        (150.0, "the bandwidth was measured too low"),
    ],
)
def test_where_a_measured_decode_stands(rate: float, words: str) -> None:
    found = roofline(TRAFFIC, 400.0, decoded=(0, rate))
    assert found.standing is not None and found.standing.share == pytest.approx(rate / 100)
    assert words in found.verdict and f"{rate / 100:.0%}" in found.verdict


def test_the_context_can_outweigh_the_weights() -> None:
    long = Traffic(GB, GB, 0, 0, GB, (CacheLayers("full", 1, row_bytes=100_000),), 40_000, "config")
    assert "reading the context (80% of the bytes)" in roofline(long, 400.0, depth=40_000).verdict


@pytest.mark.parametrize("rate", [None, 0.0])
def test_n9_nothing_measured_stands_nowhere(rate: float | None) -> None:
    assert roofline(TRAFFIC, 400.0, decoded=(0, rate)).standing is None


@pytest.mark.parametrize("tflop_s", [None, 5.0])
def test_it_is_plain_json(tflop_s: float | None) -> None:
    found: Roofline = roofline(TRAFFIC, 400.0, tflop_s, depth=5)
    told = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert told["start"] == {"depth": 0, "bytes_per_token": 4 * GB, "tokens_per_s": 100.0}
    assert told["traffic"]["caches"][0]["kind"] == "full"
