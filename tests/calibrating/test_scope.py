"""How much is measured: what fits the time, and never too little."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.calibrating.scope import Question, Scope
from dspark.tuning.curves import Level
from dspark.tuning.timing import Timing

QUESTIONS = [Question(klass, [0] * length) for klass in ("chat", "code", "copy") for length in (90, 40, 60)]


def level(ms, draft_ms=1.0):
    return Level(64, {1: Timing(ms, 0.0, 5), 8: Timing(1.5 * ms, 0.0, 5)}, {7: Timing(draft_ms, 0.0, 5)})


def test_a_fast_machine_answers_as_much_as_is_wanted_and_a_slow_one_what_it_can():
    fast, _ = Scope().choose(QUESTIONS, 5000.0, level(10.0))
    assert len(fast.questions) == 9 and fast.answer_tokens == 64
    slow, seconds = Scope().choose(QUESTIONS, 200.0, level(90.0, 15.0))
    assert {question.klass for question in slow.questions} == {"chat", "code", "copy"} and seconds <= 25.0
    crawling, seconds = Scope().choose(QUESTIONS, 5.0, level(1000.0, 15.0))
    assert len(crawling.questions) == 3 and crawling.answer_tokens == 16 and seconds > 25.0


def test_long_answers_go_before_many_short_ones():
    """Early tokens of an answer are foretold worse than later ones, most of all where it copies."""
    found = [Scope(answers_s=seconds).choose(QUESTIONS, 300.0, level(70.0, 12.0))[0] for seconds in (9.0, 13.0, 18.0)]
    amounts = [(len(chosen.questions) // 3, chosen.answer_tokens) for chosen in found]
    assert [each * tokens for each, tokens in amounts] == sorted(each * tokens for each, tokens in amounts)
    assert amounts[0] == (2, 32)


def test_the_shortest_questions_are_taken():
    chosen, _ = Scope(answers_per_class=2).choose(QUESTIONS, 5000.0, level(10.0))
    assert sorted(len(question.tokens) for question in chosen.questions) == [40, 40, 40, 60, 60, 60]


def test_depths_are_as_asked_or_what_can_be_read_in_time():
    assert Scope(depths=(4096, 100, 32)).depths_at(1.0, 8192) == [100, 4096]
    assert Scope(depths=(4096,)).depths_at(1e6, 4100) == []
    assert Scope().depths_at(330.0, 8192) == [512, 1024]
    assert Scope().depths_at(1500.0, 40000) == [1024, 4096]
    assert Scope().depths_at(10.0, 40000) == [] and Scope.brief().depths_at(1e6, 40000) == []


@settings(max_examples=100, deadline=None)
@given(st.floats(1, 1e5), st.floats(0.1, 1e4), st.floats(0.1, 100))
def test_every_class_is_always_asked(rate, ms, budget):
    chosen, seconds = Scope(answers_s=budget).choose(QUESTIONS, rate, level(ms))
    assert {question.klass for question in chosen.questions} == {"chat", "code", "copy"}
    assert 16 <= chosen.answer_tokens <= 64 and seconds > 0
