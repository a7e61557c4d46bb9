"""Recordings: the library and the model are untouched outside them, and what they rebuild is what a replay gives."""

import gc
import inspect
import weakref

import mlx.core as mx
import mlx.nn as nn
import pytest
from families import family
from mlx_lm.models import gated_delta, qwen3_5, ssm
from mlx_lm.models.cache import ArraysCache

from dspark.targets import recurrence, rewind
from dspark.targets.probe import rollback_kind, rollback_refusal
from dspark.targets.rewind import leaves
from dspark.targets.target import Target

TOKENS = [[5, 9, 33, 7, 40, 12]]


def fresh(name):
    known = family(name)
    return Target(known.model, known.tokenizer, known.config, known.path)


def test_outside_a_recording_the_model_and_the_library_are_as_they_were():
    target = fresh("qwen3_5")
    convolution = target.layers[0].linear_attn.conv1d
    before = type(convolution)
    target.forward(mx.array(TOKENS), target.new_cache())
    assert type(convolution) is before and qwen3_5.gated_delta_update is gated_delta.gated_delta_update
    with pytest.raises(RuntimeError, match="lost"), target.new_cache().writing(mx.array(TOKENS)):
        assert type(convolution) is not before
        raise RuntimeError("device lost")
    assert type(convolution) is before and qwen3_5.gated_delta_update is gated_delta.gated_delta_update


@pytest.mark.parametrize("name", ["qwen3_5", "nemotron_h", "lfm2", "kimi_linear", "falcon_h1"])
@pytest.mark.parametrize("keep", range(1, 6))
def test_rebuilt_state_is_what_a_replay_gives(name, keep):
    recorded, replayed = fresh(name), fresh(name)
    replayed.recorder = None
    caches = []
    for target, kind in ((recorded, "recorded"), (replayed, "replay")):
        cache = target.new_cache()
        target.forward(mx.array([[3, 4, 5]]), cache)
        target.forward(mx.array(TOKENS), cache)
        assert cache.rollback == kind
        cache.truncate(3 + keep)
        caches.append(cache)
    states = [[a for e in leaves(c.entries) if isinstance(e, ArraysCache) for a in e.cache] for c in caches]
    assert states[0] and all(mx.allclose(a, b, atol=1e-5).item() for a, b in zip(*states, strict=True))
    after = [t.forward(mx.array([[8, 2]]), c)[0] for t, c in zip((recorded, replayed), caches, strict=True)]
    assert mx.allclose(*after, atol=1e-4).item()


def test_a_recorder_lets_go_of_its_model_at_once():
    """Not when Python next looks for cycles."""
    model = nn.Sequential(nn.Conv1d(2, 2, 1))
    layer = weakref.ref(model.layers[0])
    gc.disable()
    try:
        recorder = recurrence.Recorder(model)
        with recorder.recording() as tape:
            model(mx.zeros((1, 3, 2)))
        assert len(tape.entered) == 1
        del model, recorder, tape
        assert layer() is None
    finally:
        gc.enable()


def test_taking_rows_back_runs_no_second_forward_where_a_recording_or_a_trim_will_do(monkeypatch):
    for name, replays in (("llama", 0), ("gemma3_text", 0), ("qwen3_5", 0), ("falcon_h1", 0), ("jamba", 1)):
        target = fresh(name)
        cache = target.new_cache()
        target.forward(mx.array(TOKENS), cache)
        calls, plain = [], type(target.model).__call__
        with monkeypatch.context() as patch:
            patch.setattr(
                type(target.model), "__call__", lambda *a, p=plain, c=calls, **k: (c.append(1), p(*a, **k))[1]
            )
            cache.truncate(2)
        assert len(calls) == replays, name


def test_a_recording_that_does_not_reproduce_the_state_is_not_used(monkeypatch):
    """The probe at load compares; the target then replays, and is exact."""
    target = fresh("qwen3_5")
    monkeypatch.setattr(
        recurrence._Update, "after", lambda self, rows: self.function(*self.arguments.args, **self.arguments.kwargs)[1]
    )
    assert rollback_refusal(target) is None
    assert target.recorder is None and rollback_kind(target) == "replay"


def test_the_library_still_has_the_arguments_that_are_cut():
    for function, rows in recurrence.UPDATES.items():
        assert set(rows) <= set(inspect.signature(function).parameters)
    assert set(recurrence.UPDATES) == {gated_delta.gated_delta_update, ssm.ssm_update}


@pytest.mark.parametrize(
    ("name", "kind", "method", "broken"),
    [
        ("gemma3_text", rewind.Ring, "rewind", lambda self, length: self.entry.trim(self.entry.offset - length)),
        ("llama4", rewind.Chunked, "rewind", lambda self, length: None),
        ("jamba", rewind.Replaced, "restore", lambda self, start: setattr(self, "_end", start)),
    ],
)
def test_the_probe_refuses_whatever_leaves_rows_behind(name, kind, method, broken, monkeypatch):
    """Negative controls: mlx-lm's own trim of a full ring, none at all, and a state that is not brought back."""
    monkeypatch.setattr(kind, method, broken)
    assert "traces" in rollback_refusal(fresh(name))
