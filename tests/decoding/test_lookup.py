"""The lookup index against a search by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.decoding.lookup import LookupIndex
from dspark.tuning.pilot import MAX_ROUND_TOKENS, MIN_MATCH_TOKENS


def longest_earlier_suffix(tokens):
    for length in range(len(tokens) - 1, 0, -1):
        suffix = tokens[-length:]
        if any(tokens[i : i + length] == suffix for i in range(len(tokens) - length)):
            return length
    return 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60))
def test_the_longest_match_wins(tokens):
    index = LookupIndex()
    for at, token in enumerate(tokens):
        index.extend([token])
        seen = tokens[: at + 1]
        length = longest_earlier_suffix(seen)
        assert index.suffix_length == length
        match = index.match()
        if length < MIN_MATCH_TOKENS:
            assert match.tokens == ()
            continue
        assert match.length == length
        assert len(match.tokens) == min(length, MAX_ROUND_TOKENS)
        # What is proposed did follow an earlier occurrence (continued past the end by its period).
        starts = [i for i in range(len(seen) - length) if seen[i : i + length] == seen[-length:]]
        continuations = []
        for start in starts:
            tail = seen[start + length :]
            continuations.append(tuple(tail[k % len(tail)] for k in range(len(match.tokens))))
        assert match.tokens in continuations


def test_a_suffix_does_not_match_itself():
    """A29: tokens that never occurred before propose nothing."""
    assert LookupIndex([1, 2, 3, 4, 5]).match().tokens == ()


def test_the_latest_of_equal_occurrences_is_continued():
    index = LookupIndex([1, 2, 9, 0, 1, 2, 8, 0])
    index.extend([1, 2])
    index.match()
    assert index.match().tokens[0] in (9, 8)
    index.extend([7, 0, 1, 2])
    assert index.match(1).tokens == (7,)


def test_the_draft_grows_with_the_match_up_to_the_limit():
    text = list(range(100))
    index = LookupIndex(text)
    lengths = []
    for token in text[:50]:
        index.extend([token])
        lengths.append(len(index.match().tokens))
    assert lengths[:4] == [0, 2, 3, 4] and max(lengths) == MAX_ROUND_TOKENS


def test_the_index_stays_linear_in_the_context():
    """A suffix automaton has at most two states a token, whatever repeats."""
    for tokens in ([5] * 5000, [(i * i) % 97 for i in range(5000)], list(range(5000))):
        assert len(LookupIndex(tokens)._length) <= 2 * len(tokens) + 1
