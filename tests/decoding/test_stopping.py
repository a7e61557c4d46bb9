"""The stop rule, above all: however tokens arrive in blocks, the text is the same."""

import pytest
from bytewise import bytewise
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, NaiveStreamingDetokenizer, SPMStreamingDetokenizer
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


EMOJI, CZECH, INVALID = "😀".encode(), "ď".encode(), b"\xff"
WRITTEN = st.characters(exclude_categories=["Cs"], exclude_characters="\0")  # mlx-lm writes a NUL as another letter
BYTES = {
    "BPE": bytewise(detokenizer_class=BPEStreamingDetokenizer),
    "any": bytewise(detokenizer_class=NaiveStreamingDetokenizer),
}


def of_bytes(tokenizer, data):
    """The ids of single bytes, which need not be whole characters."""
    known = {bytes([one]): tokenizer.convert_tokens_to_ids(symbol) for one, symbol in byte_symbols().items()}
    return [known[data[at : at + 1]] for at in range(len(data))]


def byte_symbols():
    """How byte-level tokenizers write each byte."""
    from mlx_lm.tokenizer_utils import _byte_decoder

    return {byte: symbol for symbol, byte in _byte_decoder().items()}


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize(
    ("data", "budget", "shown"),
    [
        (EMOJI, 9, ["", "", "", "😀"]),
        (CZECH, 9, ["", "ď"]),
        (EMOJI + b"a", 9, ["", "", "", "😀", "a"]),
        (EMOJI, 2, ["", "\ufffd"]),  # cut by the budget
        (CZECH, 1, ["\ufffd"]),
        (EMOJI[:2] + b" a", 9, ["", "", None, "\ufffd a"]),  # nothing can complete it any more
        (INVALID + b"abc", 9, ["", "\ufffda", "b", "c"]),
    ],
)
def test_d6_no_half_of_a_character_while_the_rest_may_come(kind, data, budget, shown):
    rule = StopRule(BYTES[kind], (), [], budget)
    told = [rule.take([token]).text for token in of_bytes(BYTES[kind], data)[:budget]]
    if None in shown:  # a blank may be shown with what follows it
        assert told[:2] == ["", ""] and "".join(told) == shown[-1]
    else:
        assert told == shown


def test_d6_bytes_of_sentencepiece():
    bare = tokenizer()
    rule = StopRule(type(bare)(bare._tokenizer, detokenizer_class=SPMStreamingDetokenizer), {EOS}, [], 9)
    assert [rule.take([token]).text for token in (48, 49, 50, 51, 52)] == ["", "é", "", "", "€"]


@pytest.mark.parametrize("kind", BYTES)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=16) | st.text(WRITTEN, max_size=6).map(str.encode), cuts=st.sets(st.integers(0, 16)))
def test_d6_any_split_into_blocks_shows_the_same(kind, data, cuts):
    tokens = of_bytes(BYTES[kind], data)
    texts = []
    for ends in ([], sorted(cut for cut in cuts if cut <= len(tokens))):
        rule, text = StopRule(BYTES[kind], (), [], 99), ""
        for start, end in zip([0, *ends], [*ends, len(tokens)], strict=True):
            text += rule.take(tokens[start:end]).text
        texts.append(text + rule.finish())
    assert texts[0] == texts[1]
    if b"\0" not in data and data.decode(errors="replace").encode() == data:
        assert texts[0].strip() == data.decode().strip()


def test_a_cancelled_answer_shows_what_was_held():
    rule = StopRule(TOKENIZER, {EOS}, ["STOP"], 9)
    rule.take([0, 41])
    assert rule.finish() == "ST"
    assert rule.text == "aST"


def test_every_id_can_be_settled():
    rule = StopRule(TOKENIZER, {EOS}, [], VOCABULARY)
    assert rule.take([i for i in range(VOCABULARY) if i != EOS]).reason is None
