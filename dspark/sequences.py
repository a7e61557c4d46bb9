"""Sequences of tokens or characters, compared."""

from collections.abc import Sequence


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """How many first tokens are the same. Slices of the same type are compared, which the interpreter does fast."""
    same, most = 0, min(len(one), len(other))
    step = most
    while step > 0:
        step = min(step, most - same)
        if one[same : same + step] == other[same : same + step]:
            same += step
            if same == most:
                break
        else:
            step //= 2
    return same
