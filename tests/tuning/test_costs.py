"""Cost curves: interpolation in width and depth, and the knee."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.tuning.costs import CostModel, Depth, knee

SHALLOW = ((1, 10.0), (4, 12.0), (8, 20.0))
DEEP = CostModel(
    SHALLOW, ((1, 1.0), (7, 2.0)), "test", 9.5, 64, (Depth(4096, ((1, 14.0), (4, 20.0), (8, 40.0)), ((1, 2.0),), 13.5),)
)


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        ([10, 10, 10.2, 11, 11.1, 17], 6),
        ([10, 20, 20, 20, 20], 2),
        ([10, 9.2, 10.8, 10.1, 11, 10.6], None),
        ([10, 11, 12, 13, 14, 15], None),
        ([10], None),
    ],
)
def test_b5_the_knee_is_where_a_step_is_dear(milliseconds, expected):
    assert knee(milliseconds) == expected


def test_b5_noise_of_a_tenth_makes_no_knee():
    for seed in range(200):
        draw = random.Random(seed)
        assert knee([10 + 0.3 * width + draw.uniform(-0.5, 0.5) for width in range(12)]) is None


def test_depth_is_interpolated_and_grows_past_the_deepest():
    middle = DEEP.at(64 + (4096 - 64) // 2)
    assert middle.verify_ms(1) == pytest.approx(12.0)
    assert middle.verify_ms(8) == pytest.approx(30.0)
    assert middle.verify_ms(2) == pytest.approx((10 + 2 / 3 + 16) / 2)
    assert middle.ahead_ms == pytest.approx(11.5)
    beyond = DEEP.at(4096 + (4096 - 64))
    assert beyond.verify_ms(1) == pytest.approx(18.0) and beyond.verify_ms(8) == pytest.approx(60.0)
    assert DEEP.at(10) is DEEP and DEEP.at(64) is DEEP


def test_noise_never_makes_the_far_depths_cheaper():
    falling = CostModel(SHALLOW, (), "test", None, 64, (Depth(1024, ((1, 9.0),)),))
    assert falling.at(100_000).verify_ms(1) == 9.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.1, 50), min_size=3, max_size=3), st.integers(0, 10**6), st.integers(1, 64))
def test_a_model_without_depths_is_the_same_everywhere(ms, tokens, width):
    model = CostModel(tuple(zip((1, 2, 8), ms, strict=True)), (), "test")
    assert model.at(tokens).verify_ms(width) == model.verify_ms(width)
