"""Thinking under a constraint: how long it may be, and what must follow."""

import itertools

import mlx.core as mx
import pytest
from test_constraint import Turns, opinionated
from toys import EOS, VOCABULARY, ToyDrafter, alternating, liar, oracle

from dspark.decoding.loop import Decoding
from dspark.decoding.request import Request, Sampling
from dspark.decoding.thinking import Thinking
from dspark.errors import ConstraintError
from dspark.tuning.pilot import FixedPilot, PlainPilot

MARKERS = {"one": ((60,), (61,)), "several": ((60, 57), (61, 58, 61, 59))}


def thinker(markers="one", memory=None):
    target = opinionated(memory)
    target.tokenizer._think_start_tokens, target.tokenizer._think_end_tokens = MARKERS[markers]
    return target


def allowed(state, draft=()):
    return [{t for t, yes in enumerate(row) if yes} for row in state.masks(draft).tolist()]


ALL = set(range(VOCABULARY))


def test_the_end_marker_is_forced_when_the_budget_is_spent():
    state = Thinking(3, opened=True)(thinker())
    assert allowed(state, [5, 6, 7, 61, 8]) == [ALL, ALL, ALL, {61}, ALL, ALL]
    assert state.admitted([5, 6, 7, 8]) == 3 and state.admitted([5, 6, 7, 61, 60, 7]) == 6
    state.advance([5, 6, 7])
    assert allowed(state) == [{61}] and not state.idle(1)
    state.advance([61])
    assert state.idle(1000) and allowed(state) == [ALL]


def test_reasoning_that_ends_by_itself_is_left_alone():
    state = Thinking(3, opened=True)(thinker())
    state.advance([5, 61])
    assert state.idle(1000) and state.admitted([5] * 9) == 9


def test_a_marker_of_several_tokens_is_completed_from_where_the_model_is():
    """The budget ends inside the marker: what stands is not said twice."""
    _, end = MARKERS["several"]
    state = Thinking(3, opened=True)(thinker("several"))
    assert allowed(state, [5, 6, 7, *end])[3:] == [{61}, {58}, {61}, {59}, ALL]
    state.advance([5, 61, 58])
    assert allowed(state, [61, 59]) == [{61}, {59}, ALL]
    restarted = Thinking(4, opened=True)(thinker("several"))
    restarted.advance([61, 58, 61, 58])
    assert allowed(restarted) == [{61}], "61 58 61 58: the second 61 58 begins the marker"


@pytest.mark.parametrize("markers", MARKERS)
def test_reasoning_that_the_model_opens_is_counted_from_there(markers):
    start, _ = MARKERS[markers]
    state = Thinking(2)(thinker(markers))
    state.advance([5, 6, 7, 8])
    assert state.idle(2) and allowed(state) == [ALL]
    state.advance(start)
    assert allowed(state, [5, 6]) == [ALL, ALL, {61}]


@pytest.mark.parametrize("opened", [True, False])
def test_what_is_said_to_be_idle_forbids_nothing(opened):
    """Every text of three kinds of tokens: while idle(n), the next n rows are free and the draft is admitted."""
    for budget, prefix in itertools.product(range(4), itertools.product([60, 61, 5], repeat=3)):
        state = Thinking(budget, opened=opened)(thinker())
        for token in prefix:
            if not state.masks(())[0, token].item():
                break
            state.advance([token])
        for count in (1, 2, 3):
            if state.idle(count):
                for draft in itertools.product([60, 61, 5], repeat=count - 1):
                    assert state.admitted(draft) == count - 1
                    assert allowed(state, draft) == [ALL] * count


@pytest.mark.parametrize("budget", [0, -1])
def test_budgets(budget):
    if budget < 0:
        with pytest.raises(ConstraintError, match="thinking_budget -1"):
            Thinking(budget, opened=True)(thinker())
    else:
        assert allowed(Thinking(budget, opened=True)(thinker())) == [{61}]


def test_a_model_without_markers_does_not_reason():
    assert Thinking(0, opened=True)(opinionated()).idle(1000)
    state = Thinking(0, then=lambda _: Turns())(opinionated())
    assert allowed(state) == [Turns().allowed([])]


def test_what_follows_begins_behind_the_end_marker():
    state = Thinking(2, opened=True, then=lambda _: Turns())(thinker())
    first = Turns().allowed([])
    assert allowed(state, [7, 8, 61]) == [ALL - {EOS}, ALL - {EOS}, {61}, first]
    assert allowed(state, [61, 9]) == [ALL - {EOS}, first, Turns().allowed([9])]
    assert state.admitted([7, 61, 10]) == 2 and state.admitted([7, 61, 9]) == 3
    state.advance([7, 61, 9])
    assert allowed(state) == [Turns().allowed([9])] and not state.idle(1)


@pytest.mark.parametrize("markers", MARKERS)
def test_before_what_follows_the_model_may_open_its_reasoning_or_not(markers):
    start, end = MARKERS[markers]
    target, first = thinker(markers), Turns().allowed([]) - {60}

    class Sober(Turns):
        def allowed(self, before):
            return super().allowed(before) - {60}

    state = Thinking(1, then=lambda _: Sober())(target)
    assert allowed(state) == [first | {60}]
    assert allowed(state, [9])[1] == Sober().allowed([9]), "an answer without reasoning"
    rows = allowed(state, [*start, 7, *end, 9])
    assert rows[1 : len(start)] == [{57}] * (len(start) - 1)
    assert rows[len(start) : len(start) + 2] == [ALL - {EOS}, {61}]
    assert rows[-2:] == [first, Sober().allowed([9])]
    state.advance([9])
    assert allowed(state) == [Sober().allowed([9])]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", [oracle, liar, alternating(1), None], ids=["oracle", "liar", "alternating", "lookup"])
@pytest.mark.parametrize("then", [None, lambda _: Turns(length=12)], ids=["free", "then"])
@pytest.mark.parametrize("markers", MARKERS)
def test_the_answer_is_the_plain_one(rule, then, markers, temperature):
    thinking, sampling = Thinking(9, opened=True, then=then), Sampling(temperature=temperature, seed=1)
    asked = Request([5, 9, 3], 40, sampling=sampling, constraint=thinking)
    memory = None if rule else 1
    *_, plain = Decoding(thinker(markers, memory), None, PlainPilot(), asked, lookup=False).events()
    _, end = MARKERS[markers]
    at = next(k for k in range(40) if plain.tokens[k : k + len(end)] == end)
    assert at <= 9
    if then is not None:
        assert plain.reason == "stop" and len(plain.tokens) == at + len(end) + 12
    truth = [5, 9, 3, *plain.tokens, EOS]
    drafter = ToyDrafter(truth, 4, rule) if rule else None
    pilot = FixedPilot(4, drafter=rule is not None, lookup=rule is None)
    *_, last = Decoding(thinker(markers, memory), drafter, pilot, asked, lookup=rule is None).events()
    assert (last.tokens, last.reason) == (plain.tokens, plain.reason)
    if rule is oracle:
        assert last.statistics.accepted > len(plain.tokens) // 3


def test_masks_are_boolean_and_as_wide_as_the_vocabulary():
    for then in (None, lambda _: Turns()):
        rows = Thinking(1, opened=True, then=then)(thinker()).masks([5])
        assert rows.shape == (2, VOCABULARY) and rows.dtype == mx.bool_
