"""Answers that are read once and answered in a batch are those of plain decoding, with the rows of a plain reading."""

import mlx.core as mx
import pytest
from families import family
from tiny import write_head, write_llama

from dspark.drafters.along import answered, drafts_along, greedy_answer, hidden_rows
from dspark.drafters.loading import load_drafter
from dspark.targets.target import Target

PROMPTS = [[5, 9, 5, 9, 5], [7, 8, 9, 10, 11, 12, 13, 14, 7, 8, 9], [3, 4]]
TAPS = (0, 1)


# Quantized caches have no batched form: their prompts are answered one by one.
@pytest.mark.parametrize(("name", "kv_bits"), [("llama", None), ("llama", 4), ("mamba2", None), ("lfm2", None)])
def test_each_answer_and_its_rows_are_those_of_plain_decoding(name, kv_bits):
    target = family(name, kv_bits)
    found = answered(target, TAPS, PROMPTS, 8)
    assert [one.prompt for one in found] == PROMPTS
    for one in found:
        plain = [token for token in greedy_answer(target, one.prompt, 8) if token not in target.eos]
        assert one.answer == plain
        ids = [*one.prompt, *one.answer[:-1]]
        assert one.rows.shape[1] >= len(ids)
        if kv_bits is None:
            assert mx.allclose(one.rows[:, : len(ids)], hidden_rows(target, TAPS, ids), rtol=1e-3, atol=1e-3)


def test_nothing_is_tapped_for_a_drafter_that_reads_no_rows(tmp_path):
    target = Target.load(write_llama(tmp_path / "llama"))
    assert [one.rows for one in answered(target, (), PROMPTS, 4)] == [None] * 3


def test_the_drafts_along_an_answer_are_those_of_a_reading_of_its_own(tmp_path):
    target = Target.load(write_llama(tmp_path / "llama"))
    drafter = load_drafter(write_head(tmp_path / "head"), target)
    (one,) = answered(target, drafter.taps, PROMPTS[1:2], 16)
    again = hidden_rows(target, drafter.taps, [*one.prompt, *one.answer[:-1]])
    ours, theirs = (drafts_along(drafter, rows, one.prompt, one.answer) for rows in (one.rows, again))
    assert [tried.accepted for tried in ours] == [tried.accepted for tried in theirs] and len(ours) == 15
