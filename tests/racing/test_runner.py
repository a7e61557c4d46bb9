from contextlib import closing

import pytest
from scripted import Pair, ScriptedDecoder

from dspark.errors import PromptError
from dspark.racing.arms import enter, parse_all
from dspark.racing.prompts import Prompt
from dspark.racing.runner import WARM_UP_PROMPT, Ended, Failed, Runner, Started

PROMPTS = [Prompt("one", "chat"), Prompt("three", "code")]


def runner(decoder: ScriptedDecoder, *arms: str, trials: int = 2, context_window: int = 1000) -> Runner:
    return Runner(
        decoder,
        enter(parse_all(arms), decoder),
        PROMPTS,
        max_tokens=10,
        trials=trials,
        context_window=context_window,
        clock=lambda: decoder.now,
    )


def test_every_arm_is_warmed_alike_before_the_first_trial_and_not_counted() -> None:
    decoder = ScriptedDecoder()
    race = runner(decoder, "lookup", "dspark")
    list(race.run())
    warm = [request for request in decoder.requests if bytes(request.prompt).decode() == WARM_UP_PROMPT]
    assert warm == decoder.requests[:3]
    assert len({request.max_tokens for request in warm}) == 1
    assert [request.speculation.mode for request in warm] == ["baseline", "lookup", "dspark"]
    assert len(race.trials) == len(decoder.requests) - 3 == 12


def test_a_trial_records_the_answer_and_both_clocks() -> None:
    race = runner(ScriptedDecoder(seconds=lambda mode, tokens: 8.0))
    list(race.run())
    trial = race.trials[0]
    assert (trial.prompt, trial.section, trial.arm, trial.number) == (0, "chat", "baseline", 0)
    assert len(trial.tokens) == 10 and trial.text and trial.reason == "length"
    assert (trial.total_s, trial.prefill_s, trial.decode_s) == (8.0, 2.0, 6.0)


def test_an_arm_that_fails_drops_out_and_the_others_go_on() -> None:
    """P9: one arm fails."""
    decoder = ScriptedDecoder()
    race = runner(decoder, "lookup", "dspark")
    events = []
    for progress in race.run():
        events.append(progress)
        if isinstance(progress, Ended) and progress.trial.arm == "lookup":
            decoder.broken = ("lookup",)  # from its second trial on
    assert race.failures == {"lookup": "lookup went wrong; load another model"}
    assert [one for one in events if isinstance(one, Failed)] == [Failed("lookup", race.failures["lookup"])]
    counted = [trial.arm for trial in race.trials]
    assert (counted.count("baseline"), counted.count("lookup"), counted.count("dspark")) == (4, 1, 4)


def test_an_arm_that_fails_in_its_warm_up_takes_no_part() -> None:
    race = runner(ScriptedDecoder(broken=("dspark",)), "dspark")
    list(race.run())
    assert set(race.failures) == {"dspark"}
    assert {trial.arm for trial in race.trials} == {"baseline"}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("[malloc] Unable to allocate.\nmore"), "RuntimeError: [malloc] Unable to allocate."),
        (MemoryError(), "MemoryError"),
    ],
)
@pytest.mark.parametrize("begun", [0, 4])
def test_any_exception_of_one_arm_leaves_the_others_their_results(begun: int, error: Exception, message: str) -> None:
    decoder = ScriptedDecoder(error=error)
    race = runner(decoder, "lookup", "dspark")
    for _ in race.run():
        if len(race.trials) == begun:  # 0: in the warm-up
            decoder.broken = ("lookup",)
    assert race.failures == {"lookup": message}
    counted = [trial.arm for trial in race.trials]
    assert (counted.count("baseline"), counted.count("dspark")) == (4, 4)


def test_the_cooldown_lies_between_answers_and_is_on_no_clock() -> None:
    """B17: a machine that throttles may be given time."""
    decoder, slept = ScriptedDecoder(), []
    race = Runner(
        decoder,
        enter(parse_all(["dspark"]), decoder),
        PROMPTS,
        max_tokens=10,
        trials=2,
        context_window=1000,
        cooldown_s=7.0,
        clock=lambda: decoder.now,
        sleep=lambda seconds: slept.append((seconds, len(race.trials))),
    )
    list(race.run())
    assert slept == [(7.0, answers) for answers in range(1, 8)]
    assert max(trial.total_s for trial in race.trials) < 7.0


def test_the_warm_up_fits_into_half_of_a_small_context_window() -> None:
    decoder = ScriptedDecoder()
    race = runner(decoder, "dspark", context_window=20)
    assert len(WARM_UP_PROMPT) > 20
    list(race.run())
    assert {len(request.prompt) for request in decoder.requests[:2]} == {10}


def test_a_race_of_any_number_of_trials_begins_at_once_and_ends_when_no_arm_is_left() -> None:
    decoder = ScriptedDecoder()
    race = runner(decoder, trials=10**12)
    seen = []
    for progress in race.run():
        seen.append(progress)
        if isinstance(progress, Ended):
            decoder.broken = ("baseline",)
    assert len(race.trials) == 1 and isinstance(seen[-1], Failed)
    assert next(one for one in seen if isinstance(one, Started)).total == 2 * 10**12


def test_an_interrupt_keeps_what_was_recorded() -> None:
    decoder = ScriptedDecoder(interrupt_at=2 + 3)  # after two warm-ups and three trials
    race = runner(decoder, "dspark")
    with pytest.raises(KeyboardInterrupt), closing(race.run()) as events:
        list(events)
    assert len(race.trials) == 3


def test_a_prompt_that_leaves_no_room_is_refused_before_anything_runs() -> None:
    decoder = ScriptedDecoder()
    with pytest.raises(PromptError, match=r"'three' has 5 tokens.* 5;"):
        runner(decoder, "dspark", context_window=5)
    assert decoder.requests == []


def test_the_scripted_pair_names_only_fields_of_the_engines() -> None:
    engine = pytest.importorskip("dspark.engine")
    assert set(Pair.__dataclass_fields__) <= set(engine.Loaded.__dataclass_fields__)
