"""B14: nothing that measures starts from what is kept, or leaves anything behind."""

from dataclasses import replace

from prefix.pairs import ask, tokens

from dspark.calibrating.scope import Question, Scope
from dspark.decoding.events import PrefillProgress
from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import Engine
from dspark.loading import load
from dspark.racing.arms import enter, parse_all
from dspark.racing.prompts import Prompt
from dspark.racing.runner import Runner

SCOPE = replace(Scope.brief(), timing_s=0.02, repeats=1, prefill_s=0.02, answer_tokens=4)


def test_b14_a_race_reads_every_prompt_in_every_trial(home):
    engine = home.engine("trimmed, dspark")
    arms = enter(parse_all(["baseline", "lookup:cap=2", "dspark:cap=2"]), engine)
    race = Runner(engine, arms, [Prompt("abc" * 30, "chat")], max_tokens=4, trials=3, context_window=1024)
    list(race.run())
    assert not race.failures and len(race.trials) == 9
    assert {trial.statistics.cached_tokens for trial in race.trials} == {0}
    report = engine.prefix_cache.report()
    assert (report.slots, report.hits + report.partials + report.misses) == (0, 0)


def test_a_warm_up_leaves_nothing_behind(home):
    engine = Engine()
    load(engine, home.options("trimmed, dspark"), SpeculationOptions(cap=2))
    assert engine.prefix_cache.report().slots == 0


def test_b14_calibrating_neither_uses_nor_fills_it(home):
    engine = home.engine("hybrid")
    ask(engine, tokens(60))
    before = engine.prefix_cache.report()
    engine.calibrate([Question("chat", tokens(60))], SCOPE)
    assert engine.prefix_cache.report() == before


def test_prompts_are_read_in_the_chunks_that_were_measured_best(home):
    engine = home.engine("trimmed, dspark")
    chunk = engine.calibrate([Question("chat", tokens(60))], SCOPE).derived.prefill_chunk
    assert chunk is not None and chunk <= 128, "fewer are not read at once"
    for mode in engine.loaded.modes:
        request = Request(tokens(300), 2, speculation=SpeculationOptions(mode, cap=2), reuse=False)
        progress = [event.processed for event in engine.generate(request) if isinstance(event, PrefillProgress)]
        assert progress == [0, 128, 256, 299, 300]
