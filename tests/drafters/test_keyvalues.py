"""The buffers of a drafter layer."""

import mlx.core as mx

from dspark.drafters.keyvalues import KeyValues


def rows(start, count):
    values = mx.arange(start, start + count, dtype=mx.float32)[None, None, :, None]
    return mx.broadcast_to(values, (1, 2, count, 4))


def held(buffer):
    keys, values = buffer.since(0)
    assert mx.array_equal(keys, -values).item()
    return keys[0, 0, :, 0].tolist()


def test_rows_come_back_in_order_across_growth_and_cuts():
    buffer, expected = KeyValues(), []
    for start, count, cut in ((0, 5, 3), (3, 300, 303), (303, 1, 304), (304, 700, 900), (900, 9, 0), (0, 2, 2)):
        buffer.extend(rows(start, count), -rows(start, count))
        buffer.truncate(cut)
        expected = [*expected[:start], *range(start, start + count)][:cut]
        assert buffer.length == len(expected)
        if expected:
            assert held(buffer) == expected
    assert buffer.since(1)[0].shape == (1, 2, 1, 4)


def test_the_context_is_copied_rarely():
    """A buffer that grew by each round's rows would copy the whole context every round."""
    buffer, sizes = KeyValues(), set()
    for start in range(0, 20000, 4):
        buffer.extend(rows(start, 4), -rows(start, 4))
        sizes.add(buffer.arrays[0].shape[2])
    assert len(sizes) <= 9
    assert max(sizes) < 20000 + 8192
