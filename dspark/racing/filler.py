"""Text to stand before a question: an invented village chronicle of any length, in which no sentence occurs twice.

A text that repeats itself would flatter a race: whatever is proposed out of the context would be right too often. So
sentences are drawn from several forms and a few hundred words, and their number is bounded by nothing that matters.
"""

import random
from collections.abc import Iterator


def _list(text: str, separator: str | None = None) -> tuple[str, ...]:
    return tuple(" ".join(each.split()) for each in text.split(separator))


NAMES = _list(
    """
    Ada Bruno Celia Dario Elif Farid Greta Hugo Ines Jonas Kaya Leon Mira Nils Olga Pavel Quinn Rosa Samir Tilda
    Umar Vera Wanda Xenia Yusuf Zora Anton Berit Cyril Doreen Emil Freya Goran Hanna Igor Judith Karl Lotte
    """,
)
NOUNS = _list(
    """
    ladder barrel window orchard lantern bridge ferry kettle saddle carpet mirror fountain hammer violin basket
    cabinet compass curtain furnace goose gravel hedge ink jacket knife ledger mill needle oven parcel quilt rope
    shovel tower umbrella valve wagon yoke anchor bell chimney drum engine fence gate harness island jar kite lock
    """,
)
ADJECTIVES = _list(
    """
    narrow crooked silent yellow heavy broken polished frozen distant careful hollow bitter wooden steep faded noisy
    gentle crowded tidy rusty proud nervous golden damp quick modern plain sturdy curious shallow northern lonely
    bright slender stubborn cheap famous patient striped muddy
    """,
)
DEEDS = _list(
    """
    repaired sold painted borrowed measured carried buried hid counted cleaned described found weighed sketched
    guarded lost moved praised returned sharpened traded tied emptied filled turned stored named lifted
    """,
)
PLACES = _list(
    """
    harbour market chapel quarry station meadow bakery lighthouse school valley cellar courtyard library forest
    workshop river customs-house barn hospital theatre garden pass kitchen ridge
    """,
)
REASONS = _list(
    """
    because the rain had stopped; although nobody had asked; while the others slept; before the tide turned; as the
    law required; in spite of the cold; without a word; after a long quarrel; to please a cousin; for less than it
    cost; as soon as the road was open; though the light was poor; hoping for better weather;
    with both hands
    """,
    ";",
)
MONTHS = _list(
    """
    January February March April May June July August September October November December
    """,
)
FORMS = (
    "{name} {deed} the {adjective} {noun} near the {place} {reason}.",
    "In {month} {year} a {adjective} {noun} was {deed} by {name} at the {place}.",
    "{reason_first}, {name} {deed} {count} pieces of the {noun} from the {place}.",
    "The {place} kept {count} records of a {adjective} {noun}, which {name} had {deed} {reason}.",
    "Nobody at the {place} knew why {name} and {other} had {deed} that {adjective} {noun}.",
    "On the {day} of {month} the {noun} of the {place} was {deed}, {reason}.",
    "{name} wrote to {other}: the {adjective} {noun} is {deed}, and the {place} closes at {hour}.",
    "There were {count} {adjective} steps from the {place} to the {noun} that {other} {deed} in {year}.",
)


def sentences(seed: str) -> Iterator[str]:
    """Sentences without end, none twice; another `seed` gives others, from the first on."""
    draw = random.Random(seed)
    said: set[str] = set()
    while True:
        sentence = _sentence(draw)
        if sentence not in said:
            said.add(sentence)
            yield sentence


def _sentence(draw: random.Random) -> str:
    reason = draw.choice(REASONS)
    day = draw.randint(1, 28)
    return draw.choice(FORMS).format(
        name=draw.choice(NAMES),
        other=draw.choice(NAMES),
        noun=draw.choice(NOUNS),
        adjective=draw.choice(ADJECTIVES),
        deed=draw.choice(DEEDS),
        place=draw.choice(PLACES),
        reason=reason,
        reason_first=reason[0].upper() + reason[1:],
        month=draw.choice(MONTHS),
        year=draw.randint(1601, 1999),
        count=draw.randint(11, 989),
        day=f"{day}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10 if day // 10 != 1 else 0, 'th') }",
        hour=f"{draw.randint(1, 12)}:{draw.randint(10, 59)}",
    )
