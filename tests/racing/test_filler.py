from itertools import islice

from dspark.decoding.lookup import LookupIndex
from dspark.racing.filler import sentences


def text(seed: str, count: int) -> list[str]:
    return list(islice(sentences(seed), count))


def test_no_sentence_occurs_twice_and_a_seed_gives_the_same_text_again() -> None:
    said = text("a", 5000)
    assert len(set(said)) == 5000
    assert said == text("a", 5000)


def test_another_seed_begins_with_another_sentence() -> None:
    assert len({text(str(seed), 1)[0] for seed in range(50)}) == 50


def test_lookup_is_seldom_right_about_the_next_word() -> None:
    """A text that repeats itself comes to 1, and flatters every drafter that copies."""
    words = " ".join(text("a", 600)).split()
    numbers = {word: at for at, word in enumerate(dict.fromkeys(words))}
    index, right = LookupIndex(), 0
    for word in words:
        proposed = index.match(1).tokens
        right += proposed == (numbers[word],)
        index.extend([numbers[word]])
    assert right / len(words) < 1 / 3


def test_sentences_are_plain_text() -> None:
    for sentence in text("a", 500):
        assert sentence.isascii() and sentence.endswith(".") and "  " not in sentence and "\n" not in sentence
        assert "{" not in sentence and sentence[0].isupper()
