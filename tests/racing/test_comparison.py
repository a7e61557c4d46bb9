import pytest
from scripted import EOS, ScriptedDecoder, plain_answer

from dspark.decoding.events import Finished
from dspark.decoding.request import Sampling
from dspark.decoding.verdict import Answer
from dspark.racing.arms import enter, parse_all
from dspark.racing.comparison import Check, Judge, check
from dspark.racing.prompts import Prompt
from dspark.racing.runner import Runner

LENGTH = 20


def race(decoder: ScriptedDecoder, *arms: str, trials: int = 2, max_tokens: int = LENGTH) -> list[Check]:
    entrants = enter(parse_all(arms), decoder)
    prompts = [Prompt("one", "chat"), Prompt("three", "code")]
    runner = Runner(decoder, entrants, prompts, max_tokens=max_tokens, trials=trials, context_window=1000)
    list(runner.run())
    judge = Judge(decoder, "float32", (EOS,), max_tokens)
    return list(check(runner.trials, runner.encoded, [entrant.label for entrant in entrants], judge))


def wrong_from(position: int, mode: str = "dspark", token: int = 999, calls: range = range(100)):
    """A decoder's `alter`: `mode` says `token` at `position`, and goes on as the target would."""

    def alter(which: str, call: int, ids: list[int]) -> list[int]:
        return [*ids[:position], token, *ids[position + 1 :]] if which == mode and call in calls else ids

    return alter


def test_equal_answers_are_identical_with_every_token_compared() -> None:
    decoder = ScriptedDecoder()
    checks = race(decoder, "lookup", "dspark")
    assert {one.outcome for one in checks} == {"identical"}
    assert all(one.compared == one.length == LENGTH for one in checks)
    assert decoder.asked == []
    against = {(one.arm, one.against) for one in checks}
    assert against == {(arm, "baseline") for arm in ("baseline", "lookup", "dspark")} | {
        ("lookup", "lookup"),
        ("dspark", "dspark"),
    }


def test_a_difference_at_a_clear_choice_is_a_divergence_with_its_evidence() -> None:
    decoder = ScriptedDecoder(alter=wrong_from(3), rivals={3: (999, 1.5)})
    off = [one for one in race(decoder, "dspark") if one.outcome != "identical"]
    assert {(one.arm, one.against, one.outcome) for one in off} == {("dspark", "baseline", "diverged")}
    seen = off[0].evidence[-1]
    assert (seen.position, seen.found, seen.expected) == (3, 999, plain_answer(list(b"one"))[3])
    assert seen.top_two is not None and seen.top_two.gap == 1.5 > seen.threshold
    assert off[0].compared == 4 < off[0].length


def test_behind_a_tie_the_rest_is_compared_with_plain_decoding_from_there() -> None:
    decoder = ScriptedDecoder(alter=wrong_from(3), rivals={3: (999, 1e-6)})
    off = [one for one in race(decoder, "dspark") if one.outcome != "identical"]
    assert {one.outcome for one in off} == {"tied"}
    assert all(one.compared == LENGTH and len(one.evidence) == 1 for one in off)


def test_a_divergence_behind_a_tie_is_found() -> None:
    def alter(mode: str, call: int, ids: list[int]) -> list[int]:
        return [*ids[:3], 999, *ids[4:9], 777, *ids[10:]] if mode == "dspark" else ids

    off = [one for one in race(ScriptedDecoder(alter=alter, rivals={3: (999, 1e-6)}), "dspark") if one.evidence]
    assert {one.outcome for one in off} == {"diverged"}
    assert [seen.position for seen in off[0].evidence] == [3, 9]


def test_a_tie_on_the_last_token_leaves_nothing_to_follow() -> None:
    decoder = ScriptedDecoder(alter=wrong_from(LENGTH - 1), rivals={LENGTH - 1: (999, 1e-6)})
    checks = race(decoder, "dspark")
    assert {one.outcome for one in checks} == {"identical", "tied"}
    assert all(one.compared == LENGTH for one in checks)


def test_an_arm_that_ends_early_at_a_tie_is_tied_and_at_a_clear_choice_diverged() -> None:
    def alter(mode: str, call: int, ids: list[int]) -> list[int]:
        return ids[:5] if mode == "dspark" else ids

    tied = race(ScriptedDecoder(alter=alter, rivals={5: (EOS, 1e-6)}), "dspark")
    clear = race(ScriptedDecoder(alter=alter, rivals={5: (EOS, 2.0)}), "dspark")
    assert {one.outcome for one in tied if one.evidence} == {"tied"}
    assert {one.outcome for one in clear if one.evidence} == {"diverged"}


def test_an_arm_that_does_not_repeat_itself_is_found_by_its_own_trials() -> None:
    # Calls of a mode: one warm-up, then two prompts a trial; the second trial goes wrong.
    decoder = ScriptedDecoder(alter=wrong_from(3, calls=range(3, 5)), rivals={3: (999, 1e-6)})
    own = [one for one in race(decoder, "dspark") if one.arm == one.against == "dspark"]
    assert [one.outcome for one in own] == ["tied", "tied"]


def test_an_arm_may_give_any_answer_that_plain_decoding_gave() -> None:
    decoder = ScriptedDecoder(
        alter=lambda mode, call, ids: (
            wrong_from(3)("dspark", call, ids) if (mode, call) in {("baseline", 3), ("dspark", 1)} else ids
        ),
        rivals={3: (999, 1e-6)},
    )
    first = [one for one in race(decoder, "dspark") if one.prompt == 0 and one.arm == "dspark"]
    assert [one.outcome for one in first if one.against == "baseline"] == ["identical", "identical"]


@pytest.mark.parametrize(("last", "outcome"), [(1e-6, "tied"), (1.5, "diverged")])
def test_ties_are_followed_to_the_end_of_the_answer_however_many(last: float, outcome: str) -> None:
    decoder = ScriptedDecoder(
        alter=lambda mode, call, ids: [999] * len(ids) if mode == "dspark" else ids,
        rivals=dict.fromkeys(range(LENGTH - 1), (999, 1e-6)) | {LENGTH - 1: (999, last)},
    )
    off = [one for one in race(decoder, "dspark") if one.evidence]
    assert {(one.outcome, len(one.evidence), one.compared) for one in off} == {(outcome, LENGTH, LENGTH)}


def test_a_continuation_stops_where_it_leaves_the_answer() -> None:
    decoder = ScriptedDecoder(rivals=dict.fromkeys(range(LENGTH), (999, 1e-6)))
    prompt = decoder.encode_chat("one")
    said: list[int] = []
    generate = decoder.generate

    def counted(request):
        for event in generate(request):
            said.extend(event.tokens if isinstance(event, Finished) else ())
            yield event

    decoder.generate = counted  # type: ignore[method-assign]
    judge = Judge(decoder, "float32", (EOS,), LENGTH)
    plain = Answer(tuple(plain_answer(prompt)[:LENGTH]), ended=False)
    outcome, evidence, compared = judge.compare(prompt, plain, Answer((999,) * LENGTH, ended=False))
    assert (outcome, len(evidence), compared) == ("tied", LENGTH, LENGTH)
    assert len(said) < LENGTH + 2


@pytest.mark.parametrize("follow", [True, False])
def test_a_judge_that_does_not_follow_says_how_far_it_read(follow: bool) -> None:
    decoder = ScriptedDecoder(rivals={3: (999, 1e-6)})
    prompt = decoder.encode_chat("one")
    ids = plain_answer(prompt)[:LENGTH]
    found = Answer((*ids[:3], 999, *ids[4:]), False)
    judge = Judge(decoder, "float32", (EOS,), LENGTH, follow)
    outcome, _, compared = judge.compare(prompt, Answer(tuple(ids), False), found)
    assert (outcome, compared) == ("tied", LENGTH if follow else 4)
    assert len(decoder.requests) == follow


def test_a_sampled_race_asks_for_the_choice_at_its_place_and_stops_at_a_tie():
    """The draws of a place belong to it, so what follows a tie cannot be re-told from the middle."""
    prompt = [60, 62]
    decoder = ScriptedDecoder(rivals={3: (7, 1e-9)})
    decoder.encode_chat("<>")
    judge = Judge(decoder, "float32", (0,), 40, sampling=Sampling(temperature=0.8, seed=1))
    expected = Answer(tuple(plain_answer(prompt)), ended=False)
    found = Answer((*expected.tokens[:3], 7, *expected.tokens[4:]), ended=False)
    outcome, evidence, compared = judge.compare(prompt, expected, found)
    assert (outcome, len(evidence), compared) == ("tied", 1, 4)
    assert decoder.places == [3]
