"""Markov, confidence and selector heads, step by step and by hand."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from drafters.reference import sigmoid
from tiny import DEEPSPEC, dflash_config, random_weights, write_llama

from dspark.drafters.config import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from dspark.drafters.loading import bind
from dspark.drafters.packaging import Checkpoint, translate
from dspark.targets.target import Target

PLAIN = translate(DEEPSPEC)
ANCHOR = 9


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return Target.load(write_llama(tmp_path_factory.mktemp("models") / "llama"))


@pytest.fixture(scope="module")
def hidden():
    mx.random.seed(5)
    return mx.random.normal((5, 32))


def drafter_of(config, target, **more):
    weights = {**random_weights(config), **more}
    w = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
    return bind(Checkpoint(config, lambda: dict(weights)), target), w


def biases(kind, w, rows):
    """Yields, given the token before, the bias of each step."""
    state = np.zeros(4)

    def step(h, token):
        nonlocal state
        e = w["markov_head.markov_w1.weight"][token]
        if kind == "vanilla":
            return w["markov_head.markov_w2.weight"] @ e
        if kind == "gated":
            gate = w["markov_head.gate_proj.weight"] @ np.concatenate([h, e]) + w["markov_head.gate_proj.bias"]
            return w["markov_head.markov_w2.weight"] @ (sigmoid(gate) * e)
        joint = w["markov_head.joint_proj.weight"] @ np.concatenate([state, e, h]) + w["markov_head.joint_proj.bias"]
        g, u, o = joint[:4], joint[4:8], joint[8:]
        state = sigmoid(g) * state + (1 - sigmoid(g)) * np.tanh(u)
        return w["markov_head.markov_w2.weight"] @ np.tanh(o)

    return step


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_markov_steps_by_hand(target, hidden, kind, softcap):
    """The bias comes after the cap and is not capped; the next step reads the token just chosen."""
    config = replace(PLAIN, markov=MarkovConfig(kind, 4), softcap=softcap, output_scale=0.7)
    drafter, w = drafter_of(config, target)
    base = np.asarray(hidden, dtype=np.float64) @ np.asarray(target.embedding.weight, dtype=np.float64).T * 0.7
    if softcap:
        base = np.tanh(base / softcap) * softcap
    step, token, tokens, logits = biases(kind, w, hidden), ANCHOR, [], []
    for h, row in zip(np.asarray(hidden), base, strict=True):
        logits.append(row + step(h, token))
        token = int(logits[-1].argmax())
        tokens.append(token)
    steps = drafter.steps(hidden, mx.array([ANCHOR]))
    assert steps.tokens.tolist() == tokens
    assert np.asarray(steps.logits) == pytest.approx(np.array(logits), abs=1e-4)
    chances = [
        sigmoid((w["confidence_head.proj.weight"] @ np.concatenate([h, w["markov_head.markov_w1.weight"][before]]))[0]
        + w["confidence_head.proj.bias"][0])
        for h, before in zip(np.asarray(hidden), [ANCHOR, *tokens], strict=False)
    ]  # fmt: skip
    assert drafter.propose(hidden, mx.array([ANCHOR])).confidence.tolist() == pytest.approx(chances, abs=1e-5)


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_the_steps_follow_whatever_is_chosen(target, hidden, kind):
    """A sampler may take another token than the best; the next step must be biased by that one."""
    drafter, _ = drafter_of(replace(PLAIN, markov=MarkovConfig(kind, 4)), target)
    worst = drafter.steps(hidden, mx.array([ANCHOR]), lambda logits, step, ids: mx.argmin(logits, axis=-1))
    assert worst.tokens.tolist() == mx.argmin(worst.logits, axis=-1).tolist()
    best = drafter.steps(hidden, mx.array([ANCHOR]))
    assert mx.allclose(worst.logits[0], best.logits[0]).item()
    assert not mx.allclose(worst.logits[1], best.logits[1]).item()


def test_confidence_without_markov_input_and_with_temperatures(target, hidden):
    """M8: a confidence head works without any Markov head."""
    temperatures = (1.5, 0.9, 1.5, 1.6, 0.5)
    config = replace(PLAIN, markov=None, confidence=ConfidenceConfig(False, temperatures))
    drafter, w = drafter_of(config, target)
    logits = np.asarray(hidden) @ w["confidence_head.proj.weight"][0] + w["confidence_head.proj.bias"][0]
    expected = sigmoid(logits / np.array(temperatures))
    for cap in (1, 3, 5):
        draft = drafter.propose(hidden[:cap], mx.array([ANCHOR]))
        assert draft.confidence.tolist() == pytest.approx(expected[:cap].tolist(), abs=1e-5)
    base = np.asarray(hidden) @ np.asarray(target.embedding.weight).T
    assert draft.tokens.tolist() == base.argmax(axis=-1).tolist()


def test_what_the_config_leaves_unsaid_of_the_confidence_head_its_width_decides(target, hidden):
    for with_markov in (True, False):
        config = replace(PLAIN, confidence=ConfidenceConfig(with_markov))
        weights = random_weights(config)
        unsaid = replace(PLAIN, confidence=ConfidenceConfig(None))
        told, untold = (bind(Checkpoint(c, lambda w=weights: dict(w)), target) for c in (config, unsaid))
        one, other = (d.propose(hidden, mx.array([ANCHOR])).confidence for d in (told, untold))
        assert mx.array_equal(one, other).item()


def test_the_candidate_path_by_hand(target, hidden):
    config = replace(
        translate(dflash_config()), convolution=ConvolutionConfig(2, 8), selector=SelectorConfig(rank=4, top_k=6)
    )
    drafter, w = drafter_of(config, target)
    base = np.asarray(hidden, dtype=np.float64) @ np.asarray(target.embedding.weight, dtype=np.float64).T
    before, tokens, scores = ANCHOR, [], []
    for h, row in zip(np.asarray(hidden, dtype=np.float64), base, strict=True):
        best = np.argsort(row)[-6:]
        query = w["candidate_selector.predecessor_codebook"][before] * (
            w["candidate_selector.hidden_projection.weight"] @ h
        )
        scores.append({int(b): row[b] + query @ w["candidate_selector.successor_codebook"][b] for b in best})
        before = max(scores[-1], key=scores[-1].get)
        tokens.append(before)
    steps = drafter.steps(hidden, mx.array([ANCHOR]))
    assert steps.tokens.tolist() == tokens != base.argmax(axis=-1).tolist()
    for ids, logits, theirs in zip(steps.support.tolist(), steps.logits.tolist(), scores, strict=True):
        assert dict(zip(ids, logits, strict=True)) == pytest.approx(theirs, abs=1e-4)


def test_a_pick_is_told_the_step_and_what_its_columns_mean(target, hidden):
    """A sampler mirrors the target's noise by target ids, whichever part of the vocabulary a step chooses from."""
    selector = replace(
        translate(dflash_config()), convolution=ConvolutionConfig(2, 8), selector=SelectorConfig(rank=4, top_k=6)
    )
    for config in (PLAIN, replace(PLAIN, markov=None, confidence=None), selector):
        drafter, _ = drafter_of(config, target)
        seen = []

        def pick(logits, step, ids, seen=seen):
            columns = mx.arange(64) if ids is None else ids
            assert logits.shape == (1, columns.shape[0])
            seen.append((step, columns.tolist()))
            return mx.array([2])

        tokens = drafter.propose(hidden, mx.array([ANCHOR]), pick).tokens.tolist()
        assert [step for step, _ in seen] == [0, 1, 2, 3, 4]
        assert tokens == [columns[2] for _, columns in seen]
