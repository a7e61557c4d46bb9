"""Which proposals the target agrees with."""

from collections.abc import Sequence


def accepted_prefix(proposals: Sequence[int], choices: Sequence[int]) -> int:
    """How many proposals are the target's own choice, counted up to the first that is not.

    `choices[j]` is the target's token after the anchor and proposals 0 .. j-1, so there is one more choice than there
    are proposals.
    """
    count = 0
    for proposal, choice in zip(proposals, choices, strict=False):
        if proposal != choice:
            break
        count += 1
    return count
