"""A drafter of the caller's own: plugged into a loaded target, fed every committed token, and never trusted."""

import mlx.core as mx
import pytest
from tiny import write_llama

from dspark.decoding.request import Request, SpeculationOptions
from dspark.drafters.drafter import Draft
from dspark.engine import Engine, LoadOptions
from dspark.errors import NotLoaded, PairingError, UsageError

PROMPT = [5, 9, 33, 7]


class Ledger:
    """Keeps the tokens it is given."""

    arrays = ()

    def __init__(self):
        self.tokens, self.widths = [], []

    @property
    def length(self):
        return len(self.tokens)

    def append(self, rows, tokens):
        self.widths.append(None if rows is None else rows.shape[1:])
        self.tokens += tokens

    def truncate(self, length):
        del self.tokens[length:]


class Guess:
    """Proposes the same ids every time."""

    has_confidence = False

    def __init__(self, ids, taps=()):
        self.block, self.taps, self._ids, self.contexts = len(ids), taps, ids, []

    def new_context(self):
        self.contexts.append(Ledger())
        return self.contexts[-1]

    def draft(self, context, anchor, cap, pick):
        return Draft(mx.array(self._ids[:cap]), None)


@pytest.fixture
def engine(tmp_path):
    engine = Engine()
    engine.load(LoadOptions(model=str(write_llama(tmp_path / "m")), drafter="none"))
    return engine


def answer(engine, **options):
    *_, last = engine.generate(Request(PROMPT, max_tokens=30, speculation=SpeculationOptions(**options), reuse=False))
    return last


@pytest.mark.parametrize("taps", [(), (-1,), (0, 3)])
def test_it_sees_every_committed_token_and_changes_nothing(engine, taps):
    plain = answer(engine, mode="baseline")
    drafter = Guess(list(plain.tokens[3:6]), taps)
    loaded = engine.plug(drafter)
    assert (loaded.default.mode, loaded.block, loaded.drafter) == ("dspark", 3, "plugged in")
    for options in ({"cap": 3, "lookup": False}, {"cap": 2}, {}):
        last = answer(engine, **options)
        assert last.tokens == plain.tokens
        context = drafter.contexts[-1]
        assert context.tokens == [*PROMPT, *plain.tokens][: context.length]
        assert len(PROMPT) + len(plain.tokens) - context.length in (0, 1)
        assert all((width is None) if not taps else width[1] == 32 * len(taps) for width in context.widths)


def test_what_cannot_be_plugged_in_is_refused(engine):
    with pytest.raises(UsageError, match="block"):
        engine.plug(Guess([]))
    with pytest.raises(PairingError, match="taps"):
        engine.plug(Guess([1], taps=(9,)))
    engine.plug(Guess([1, 2]))
    with pytest.raises(UsageError, match="confidence"):
        engine.resolve(SpeculationOptions("dspark", confidence=0.5))
    with pytest.raises(UsageError, match="2"):
        engine.resolve(SpeculationOptions("dspark", cap=3))
    with pytest.raises(NotLoaded):
        Engine().plug(Guess([1]))
