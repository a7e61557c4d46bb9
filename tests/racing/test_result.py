import pytest
from scripted import ScriptedDecoder
from scripted_race import diverging, hold, result_of, runner

from dspark.racing import report


def test_the_verdict_is_the_worst_of_all_comparisons() -> None:
    assert hold().verdict == "identical"
    assert hold(diverging(1e-6)).verdict == "tied"
    assert hold(diverging(1.5)).verdict == "diverged"


def test_without_a_second_answer_there_is_nothing_to_compare() -> None:
    alone = hold(None, "baseline", trials=1)
    assert alone.verdict is None and alone.repeatable("baseline") is None
    assert hold(None, "baseline", trials=2).verdict is None, "plain decoding is not compared with itself only"


def test_without_plain_decoding_there_is_no_verdict_whatever_the_arms_say_of_themselves() -> None:
    result = hold(ScriptedDecoder(broken=("baseline",)))
    assert result.repeatable("lookup") is True
    assert result.verdict is None and result.against_baseline("lookup") is None
    assert report.verdict(result) == "no verdict: plain decoding failed"


@pytest.mark.parametrize(("decoder", "verdict"), [(ScriptedDecoder(), None), (diverging(1.5), "diverged")])
def test_plain_decoding_that_fails_on_the_way_leaves_only_a_divergence_standing(decoder, verdict) -> None:
    race = runner(decoder)
    for _ in race.run():
        if len(race.trials) == 5:
            decoder.broken = ("baseline",)
    assert result_of(race).verdict == verdict


def test_an_arm_is_judged_by_itself() -> None:
    result = hold(diverging())
    assert (result.against_baseline("dspark"), result.against_baseline("lookup")) == ("diverged", "identical")
    assert result.against_baseline("baseline") is None
    assert result.repeatable("dspark") is True


def test_an_arm_that_changes_its_answers_is_not_repeatable() -> None:
    decoder = ScriptedDecoder(
        alter=lambda mode, call, ids: [*ids[:3], 999, *ids[4:]] if (mode, call) == ("lookup", 4) else ids,
        rivals={3: (999, 1e-6)},
    )
    result = hold(decoder)
    assert result.repeatable("lookup") is False and result.repeatable("baseline") is True
    assert result.verdict == "tied"
    assert "not repeatable" in report.repeatability(result) and "lookup" in report.repeatability(result)


def test_a_race_cut_short_is_summarised_and_its_ties_are_not_followed() -> None:
    decoder = diverging(1e-6)
    decoder.interrupt_at = 3 + 7
    race = runner(decoder)
    with pytest.raises(KeyboardInterrupt):
        list(race.run())
    asked = len(decoder.requests)
    result = result_of(race, interrupted=True)
    assert len(decoder.requests) == asked
    assert result.interrupted and result.verdict == "tied" and len(result.trials) == 7
    assert result.table["dspark"]["chat"].end_to_end is not None


def test_an_error_while_comparing_keeps_the_figures_and_leaves_no_verdict() -> None:
    race = runner(diverging(1e-6))
    list(race.run())
    race.decoder.broken, race.decoder.error = ("baseline",), RuntimeError("out of memory\nmore")
    result = result_of(race)
    assert result.failures == {"baseline": "comparing the answers: RuntimeError: out of memory"}
    assert result.verdict is None and len(result.trials) == 18
    assert result.table["dspark"]["chat"].end_to_end is not None


def test_an_answer_whose_rest_was_not_compared_says_so_in_a_warning() -> None:
    race = runner(diverging(1e-6))
    list(race.run())
    assert "unread" not in {warning.kind for warning in result_of(race).warnings}
    (said,) = (warning for warning in result_of(race, interrupted=True).warnings if warning.kind == "unread")
    assert said.message.startswith("96 tokens behind ties")  # 6 answers of 20, compared up to the fourth token


def test_evidence_names_both_tokens_the_position_and_the_gap() -> None:
    """P9: the first position that differs is named, with how near the target's own choice was."""
    result = hold(diverging(1.5))
    (line, *more) = report.evidence(result)
    assert "dspark, prompt 1 (chat), token 4" in line
    assert "'<999>' (999)" in line and "1.5 apart" in line and "tied below 0.00012" in line
    assert len(more) == 2  # one line a prompt, however many trials
    assert report.verdict(result).startswith("DIVERGED: dspark gave")


def test_an_arm_that_stops_earlier_diverges_where_its_answer_ends() -> None:
    """P9: arms that stop at different lengths."""
    decoder = ScriptedDecoder(alter=lambda mode, call, ids: ids[:7] if mode == "dspark" else ids)
    result = hold(decoder)
    assert result.verdict == "diverged"
    (line, *_) = report.evidence(result)
    assert "dspark, prompt 1 (chat), token 8: " in line


def test_the_sentence_counts_what_was_compared() -> None:
    assert report.verdict(hold()) == (
        "identical: 12 answers of 2 arms equal plain decoding token for token (240 tokens compared)"
    )
    assert "everything else is equal" in report.verdict(hold(diverging(1e-6)))
    assert "nothing to compare" in report.verdict(hold(None, "baseline", trials=1))
    assert "two trials" in report.repeatability(hold(trials=1))


def test_rows_mark_a_failed_arm_and_keep_the_others() -> None:
    result = hold(ScriptedDecoder(broken=("lookup",)))
    rows = {row[0]: row[1:] for row in report.rows(result, "chat", report.SPEED)}
    assert set(rows) == {"baseline", "lookup (failed)", "dspark"}
    assert set(rows["lookup (failed)"]) == {"-"}
    assert rows["dspark"][2] == "2.00"
    assert list(report.failures(result)) == ["lookup failed: lookup went wrong; load another model"]


def test_positions_show_counts_of_what_was_tested() -> None:
    assert list(report.positions(hold(), "chat")) == ["dspark accepted by position  1: 20/20"]
