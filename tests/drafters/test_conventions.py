"""What a packaging leaves open is tried out, told and remembered."""

import json
from dataclasses import replace

import mlx.core as mx
import pytest
from tiny import DEEPSPEC, head_weights, random_weights, speculators_config, write_head, write_llama

from dspark.drafters import conventions
from dspark.drafters.along import Tried, greedy_answer
from dspark.drafters.conventions import _PROMPT, open_drafter, preferred, readings
from dspark.drafters.packaging import translate
from dspark.hub.checkpoint import fingerprint
from dspark.targets.target import Target


@pytest.fixture(autouse=True, scope="module")
def _as_shipped(unhurried):
    with unhurried():
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return Target.load(write_llama(tmp_path_factory.mktemp("models") / "llama"))


def undecided(**changes):
    config = speculators_config(speculators_config={"algorithm": "dspark"}, **changes)
    return {key: value for key, value in config.items() if key != "sample_from_anchor"}


def test_every_combination_is_a_reading_and_the_likelier_comes_first():
    config = translate(undecided(aux_hidden_state_layer_ids=[1, 3]))
    found = [(reading.config.taps, reading.config.layout, reading.config.block) for reading in readings(config)]
    assert found == [
        ((0, 2), "same", 4),
        ((0, 2), "next", 5),
        ((1, 3), "same", 4),
        ((1, 3), "next", 5),
    ]
    assert readings(translate(DEEPSPEC)) == [readings(translate(DEEPSPEC))[0]]


def test_rotations_are_tried_both_ways():
    config = replace(translate(DEEPSPEC), open=("rope",))
    assert [reading.config.rope.traditional for reading in readings(config)] == [False, True]


@pytest.mark.parametrize(
    ("accepted", "kept"),
    [
        ([[1, 0, 2, 1] * 8, [3, 2, 4, 3] * 8], 1),
        ([[3, 2, 4, 3] * 8, [1, 0, 2, 1] * 8], 0),
        ([[1, 0, 2, 1] * 8, [1, 0, 2, 1] * 8], 0),
        ([[1, 0, 2, 1] * 8, [0, 1, 2, 1] * 7 + [2, 1, 2, 1]], 0),
        ([[0, 0, 0, 0] * 8, [1, 1, 1, 2] * 8, [2, 2, 2, 3] * 8], 2),
        ([[], []], 0),
    ],
)
def test_another_reading_must_be_clearly_better(accepted, kept):
    assert preferred(accepted) == kept


def test_a_drafter_that_is_never_accepted_is_reported_and_not_remembered(target, tmp_path):
    memory = tmp_path / "home" / "drafters.json"
    weights = head_weights()
    head = {"lm_head.weight": mx.zeros((64, 32)), "markov_head.markov_w2.weight": mx.zeros((64, 4))}
    folder = write_head(
        tmp_path / "head", speculators_config(aux_hidden_state_layer_ids=[1, 3, 4]), {**weights, **head}
    )
    opened = open_drafter(folder, target, memory=memory)
    assert "another model" in opened.note
    assert opened.drafter.taps == (0, 2, 3)
    assert not memory.exists()


def test_nothing_open_is_nothing_tried(target, tmp_path):
    opened = open_drafter(write_head(tmp_path / "a"), target)
    assert opened.note is None or "another model" in opened.note  # a random head may be right by chance
    # Numbered from 0, the last tap would be one that this target does not have.
    opened = open_drafter(write_head(tmp_path / "b", speculators_config()), target)
    assert opened.drafter.taps == (0, 2, 4)
    assert opened.note is None or "numbered" not in opened.note


def test_what_was_found_is_remembered_for_this_checkpoint_only(target, tmp_path):
    config = undecided()
    folder = write_head(tmp_path / "head", config, constant_head(config, target))
    memory = tmp_path / "home" / "drafters.json"
    first = open_drafter(folder, target, memory=memory)
    assert "by trial" in first.note
    known = json.loads(memory.read_text())
    (key,) = known
    assert key.startswith(fingerprint(folder)) and known[key] in first.note
    assert "tried out before" in open_drafter(folder, target, memory=memory).note
    # The memory is believed: another entry gives another reading.
    other = next(r for r in readings(translate(config)) if r.config.layout == "next")
    memory.write_text(json.dumps({key: other.name}))
    assert open_drafter(folder, target, memory=memory).drafter.config.layout == "next"
    # A changed checkpoint is another one, and a broken memory costs no more than the trial.
    (folder / "config.json").write_text(json.dumps({**config, "note": "changed"}))
    assert "by trial" in open_drafter(folder, target, memory=memory).note
    memory.write_text("{")
    assert "by trial" in open_drafter(folder, target, memory=memory).note


def constant_head(config, target):
    """A head that always proposes the token that the target says most often."""
    answer = greedy_answer(target, target.encode_chat(_PROMPT), 64)
    often = mx.arange(64)[:, None] == max(set(answer), key=answer.count)
    head = {
        "lm_head.weight": mx.zeros((64, 32)),
        "markov_head.markov_w1.weight": mx.ones((64, 4)),
        "markov_head.markov_w2.weight": mx.broadcast_to(often, (64, 4)).astype(mx.float32),
    }
    return {**random_weights(translate(config)), **head}


@pytest.mark.real
def test_a_trained_head_is_read_as_it_was_trained(reference_heads, demo_engine, tmp_path):
    """Told nothing, the trial finds that its anchor's slot predicts, though files of that kind mean the opposite."""
    source = reference_heads / "smollm2-dspark-8k"
    config = json.loads((source / "config.json").read_text())
    del config["sample_from_anchor"]
    config["speculators_config"] = {"algorithm": "dspark"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    target = demo_engine._pair.target
    assert translate(config).layout == "same"
    opened = open_drafter(tmp_path, target)
    assert (opened.drafter.config.layout, opened.drafter.block) == ("next", 7)
    assert opened.drafter.taps == (1, 8, 15, 22, 28)
    assert demo_engine._pair.drafter.taps == (1, 8, 15, 22, 28), "the shipped head"


def test_a_drafter_that_is_never_accepted_is_reported_once_a_load_and_a_sound_one_only_tried_once(
    tmp_path, monkeypatch
):
    """M1: shapes fit, nothing is open, and still nothing it says is right (or everything is)."""
    target = Target.load(write_llama(tmp_path / "llama"))
    head, memory = write_head(tmp_path / "head"), tmp_path / "memory.json"
    tried = []

    def accepted(drafter, rows, prompt, answer):
        tried.append(1)
        return outcome

    monkeypatch.setattr(conventions, "drafts_along", accepted)
    outcome = [Tried(0, None)] * 30
    for _ in range(2):
        assert "another model" in open_drafter(head, target, memory=memory).note
    outcome = [Tried(2, None)] * 30
    assert [open_drafter(head, target, memory=memory).note for _ in range(3)] == [None] * 3
    assert len(tried) == 3
