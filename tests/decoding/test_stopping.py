"""The stop rule, above all: however tokens arrive in blocks, the text is the same."""

from hypothesis import given, settings
from hypothesis import strategies as st
from toys import EOS, PIECES, VOCABULARY, tokenizer

from dspark.decoding.stopping import StopRule

TOKENIZER = tokenizer()
TOKENS = st.lists(st.sampled_from([0, 1, 3, *PIECES]), max_size=24)
# Whole characters only: a byte without its rest has no text that streaming and decoding at once could agree on.
WHOLE = st.lists(
    st.sampled_from([[0], [1], [3], *([i] for i in PIECES if i < 48), [48, 49], [50, 51, 52]]), max_size=16
).map(lambda characters: [token for character in characters for token in character])
STOPS = st.lists(st.sampled_from(["ab", "abc", "bca", "STOP", "é", "\n a", "aaa", ""]), max_size=3)


def settle(tokens, stop, budget, cuts):
    rule = StopRule(TOKENIZER, {EOS}, stop, budget)
    text, reason, settled = "", None, 0
    at = 0
    for cut in [*sorted(cuts), len(tokens)]:
        if reason is None and cut > at:
            settlement = rule.take(tokens[at:cut])
            text += settlement.text
            reason = settlement.reason
            settled += settlement.count
            at = cut
    return rule, text, reason, settled


@settings(max_examples=300, deadline=None)
@given(TOKENS, STOPS, st.integers(1, 30), st.booleans(), st.data())
def test_every_split_into_blocks_gives_the_same_answer(tokens, stop, budget, ended, data):
    tokens = [*tokens, *([EOS, 5, 6] if ended else [])]
    cuts = data.draw(st.sets(st.integers(0, len(tokens))))
    whole = settle(tokens, stop, budget, set())
    blocks = settle(tokens, stop, budget, cuts)
    assert (blocks[0].tokens, blocks[1], blocks[2]) == (whole[0].tokens, whole[1], whole[2])
    assert blocks[1] == blocks[0].text


@settings(max_examples=300, deadline=None)
@given(WHOLE, STOPS)
def test_a_stop_string_ends_the_text_before_its_first_character(tokens, stop):
    rule, text, reason, _ = settle(tokens, stop, 99, set())
    text += rule.finish() if reason is None else ""
    full = TOKENIZER.decode(tokens)
    found = [full.index(s) + len(s) for s in stop if s and s in full]
    if not found:
        assert (text, reason) == (full, None)
        return
    # The stop string that is complete first wins; of those complete at once, the longest.
    end = min(found)
    longest = max(len(s) for s in stop if s and full[:end].endswith(s))
    assert (text, reason) == (full[: end - longest], "stop")
    kept = TOKENIZER.decode(rule.tokens)
    assert kept.startswith(text) and not TOKENIZER.decode(rule.tokens[:-1]).startswith(text + "\0")
    assert not rule.tokens or len(TOKENIZER.decode(rule.tokens[:-1]).rstrip("\ufffd")) < len(text) or not text


def test_text_that_may_become_a_stop_string_is_held_back():
    rule = StopRule(TOKENIZER, {EOS}, ["STOP"], 9)
    assert rule.take([0, 41]).text == "a"
    assert rule.take([0]).text == "STa"


def test_half_a_character_is_never_shown():
    rule = StopRule(TOKENIZER, {EOS}, [], 9)
    assert rule.take([48]).text == ""
    assert rule.take([49]).text == "é"


def test_a_cancelled_answer_shows_what_was_held():
    rule = StopRule(TOKENIZER, {EOS}, ["STOP"], 9)
    rule.take([0, 41])
    assert rule.finish() == "ST"
    assert rule.text == "aST"


def test_every_id_can_be_settled():
    rule = StopRule(TOKENIZER, {EOS}, [], VOCABULARY)
    assert rule.take([i for i in range(VOCABULARY) if i != EOS]).reason is None
