"""Where two sequences part."""

from hypothesis import given
from hypothesis import strategies as st

from dspark.sequences import common_prefix

RUNS = st.lists(st.integers(0, 2), max_size=40)


@given(RUNS, RUNS, RUNS)
def test_the_common_prefix_is_the_longest(start, one, other):
    a, b = [*start, *one], [*start, *other]
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b) == expected
