from collections.abc import Sequence

import pytest
from scripted import ScriptedDecoder
from scripted_race import hold, runner

from dspark.errors import PromptError, UsageError
from dspark.racing import report
from dspark.racing.depth import encode, parse_depths, spread_out
from dspark.racing.prompts import Prompt, builtin, sections
from dspark.racing.trials import schedule

HEAD, TAIL = [1, 2, 3], [4, 5]


class Templated(ScriptedDecoder):
    """A chat template around the bytes of the prompt, blanks at its ends removed."""

    def encode_chat(self, prompt: str) -> list[int]:
        return [*HEAD, *prompt.strip().encode(), *TAIL]


class Mute(ScriptedDecoder):
    """A tokenizer that makes one token of whatever it is given."""

    def encode_chat(self, prompt: str) -> list[int]:
        return [*HEAD, len(prompt), *TAIL]


@pytest.mark.parametrize("depth", [0, 1, 10, 72, 73, 74, 1000, 5000])
def test_a_prompt_at_depth_is_longer_by_exactly_so_many_tokens_and_ends_as_it_is(depth: int) -> None:
    plain, deep = encode(Templated(), Prompt("Why?", "own")), encode(Templated(), Prompt("Why?", "own", depth))
    assert len(deep) == len(plain) + depth
    assert deep[:3] == HEAD and deep[3 + depth :] == plain[3:]


def test_no_prompt_at_depth_begins_as_another_does() -> None:
    """B14: a prefix cache has nothing to answer for, neither from prompt to prompt nor from depth to depth."""
    prompts = spread_out([Prompt("Why?", "own"), Prompt("How?", "own")], (500, 1000))
    begins: set[Sequence[int]] = {tuple(encode(Templated(), prompt)[3:40]) for prompt in prompts}
    assert len(begins) == 4


def test_the_same_prompt_at_the_same_depth_is_the_same_in_the_next_race() -> None:
    assert encode(Templated(), Prompt("Why?", "own", 900)) == encode(Templated(), Prompt("Why?", "own", 900))


def test_a_tokenizer_that_makes_nothing_of_text_is_refused_and_does_not_hang() -> None:
    with pytest.raises(PromptError, match="race this model without --depth"):
        encode(Mute(), Prompt("Why?", "own", 100))


@pytest.mark.real
def test_lengths_are_exact_with_a_real_tokenizer_and_template(demo_engine) -> None:
    for prompt in builtin():
        plain = len(demo_engine.encode_chat(prompt.text))
        for depth in (1, 100, 1024):
            assert len(encode(demo_engine, Prompt(prompt.text, prompt.klass, depth))) == plain + depth
    text = demo_engine.decode(encode(demo_engine, Prompt("Why do cats purr?", "own", 100)))
    assert text.count("<|im_start|>user") == 1 and "Why do cats purr?<|im_end|>" in text


def test_depths_are_read_with_k_for_1024_each_once() -> None:
    assert parse_depths(["0,1k", "4096, 4K", "100"]) == (0, 1024, 4096, 100)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5k", "1m", "1k,,2k", "99999999", "１"])
def test_what_is_no_depth_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--depth") as caught:
        parse_depths([text])
    assert "4k" in str(caught.value)


def test_a_depth_beyond_the_window_is_refused_with_the_most_there_is_room_for() -> None:
    # The longest prompt has 11 tokens, the answer 20, the window 1000.
    with pytest.raises(UsageError, match=r"--depth 980: with the prompt 'four \| five' .* give at most 969$"):
        runner(ScriptedDecoder(), depths=(0, 100, 980))
    runner(ScriptedDecoder(), depths=(0, 969))


def test_the_depths_of_a_prompt_are_neighbours_in_the_schedule() -> None:
    """B17: a machine that slows down reaches all depths alike."""
    prompts = spread_out([Prompt("a", "chat"), Prompt("b", "chat")], (0, 100))
    order = [prompts[slot.prompt].depth for slot in schedule(len(prompts), 2, 1)]
    assert order == [0, 100] * 4


def test_figures_are_kept_by_class_and_depth() -> None:
    result = hold(depths=(0, 50))
    assert list(result.sections) == ["chat", "code", "overall@0", "chat@50", "code@50", "overall@50", "overall"]
    assert set(result.sections) <= set(result.table["dspark"])
    counted = {name: result.table["dspark"][name].trials for name in result.sections}
    assert counted == {
        "chat": 2, "code": 4, "overall@0": 6, "chat@50": 2, "code@50": 4, "overall@50": 6, "overall": 12,
    }  # fmt: skip


def test_a_single_class_has_no_table_of_its_own_for_all_classes_of_a_depth() -> None:
    found = sections(spread_out([Prompt("a", "own")], (0, 1024)))
    assert found == {
        "own": ("own",), "overall@0": ("own",), "own@1k": ("own@1k",), "overall@1k": ("own@1k",),
        "overall": ("own", "own@1k"),
    }  # fmt: skip


def test_headings_say_class_depth_and_how_much_is_in_them() -> None:
    result = hold(depths=(0, 50))
    assert [report.heading(result, section) for section in result.sections] == [
        "chat (1 prompt)",
        "code (2 prompts)",
        "overall at depth 0 (2 classes)",
        "chat at depth 50 (1 prompt)",
        "code at depth 50 (2 prompts)",
        "overall at depth 50 (2 classes)",
        "overall (4 sections)",
    ]


def test_the_ratios_of_several_depths_stand_side_by_side() -> None:
    rows = list(report.depth_rows(hold(depths=(0, 50))))
    assert [row[0] for row in rows] == ["lookup", "dspark"]
    assert [cell.split()[0] for cell in rows[1][1:]] == ["2.00", "2.00"]
