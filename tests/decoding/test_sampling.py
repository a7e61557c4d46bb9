"""Sampling: exactly the target's law under every setting, in every mode, and the same text for the same seed."""

import itertools
import math
import random
from collections import Counter

import mlx.core as mx
import pytest
from tiny import write_head, write_llama
from toys import ToyDrafter, alternating, liar, oracle, scripted_target

from dspark.decoding.events import Finished, RoundCommitted
from dspark.decoding.loop import Decoding
from dspark.decoding.request import Request, Sampling, SpeculationOptions
from dspark.decoding.sampling import Chooser
from dspark.engine import Engine, LoadOptions
from dspark.errors import UsageError
from dspark.tuning.pilot import FixedPilot, PlainPilot

LAW = (0.5, 0.3, 0.15, 0.05)
DRAWS = 20_000
# Chance of 1e-5 to exceed, by degrees of freedom.
CRITICAL = {0: 0.0, 1: 19.5, 2: 23.0, 3: 25.9}
SINGLE = [{"temperature": 0.7}, {"top_k": 2}, {"top_p": 0.8}, {"min_p": 0.2}, {"logit_bias": {0: -1.0, 3: 2.0}}, {}]
PAIRS = [a | b for a, b in itertools.combinations(SINGLE[:-1], 2)]


def expected_law(law, *, temperature=1.0, top_p=1.0, min_p=0.0, top_k=0, logit_bias=None):
    """By hand, in mlx-lm's order: bias, then top_p, min_p, top_k on the law at temperature 1, then the temperature."""
    weights = [p * math.exp((logit_bias or {}).get(i, 0.0)) for i, p in enumerate(law)]
    probabilities = [w / sum(weights) for w in weights]
    kept = set(range(len(law)))
    order = sorted(kept, key=lambda i: -probabilities[i])
    if top_p < 1.0:
        mass, nucleus = 0.0, set()
        for i in order:
            if mass >= top_p:
                break
            nucleus.add(i)
            mass += probabilities[i]
        kept &= nucleus
    if min_p > 0.0:
        kept = {i for i in kept if probabilities[i] >= min_p * max(probabilities)}
    if top_k:
        kept = set(sorted(kept, key=lambda i: -probabilities[i])[:top_k])
    weights = [probabilities[i] ** (1 / temperature) if i in kept else 0.0 for i in range(len(law))]
    return [w / sum(weights) for w in weights]


def chi_square(counts, law):
    total = sum(counts.values())
    assert all(counts[i] == 0 for i, p in enumerate(law) if p == 0.0), "a token outside the law was drawn"
    live = [i for i, p in enumerate(law) if p > 0.0]
    value = sum((counts[i] - total * law[i]) ** 2 / (total * law[i]) for i in live)
    return value, CRITICAL[len(live) - 1]


@pytest.fixture(scope="module")
def noise():
    """The noise of 20,000 places for seed 3; it depends on nothing else."""
    return Chooser(Sampling(temperature=1.0, seed=3), len(LAW)).noise(0, DRAWS)


@pytest.mark.parametrize("settings", [*SINGLE, *PAIRS], ids=str)
def test_draws_follow_the_filtered_law(settings, noise):
    """A8: every setting and every pair of them, 20,000 places of one answer."""
    chooser = Chooser(Sampling(**{"temperature": 1.0, "seed": 3, **settings}), len(LAW))
    logits = mx.broadcast_to(mx.log(mx.array(LAW))[None], (DRAWS, len(LAW)))
    drawn = chooser.choose(chooser.process(logits[:1], ()) + mx.zeros((DRAWS, 1)), noise)
    value, critical = chi_square(Counter(drawn.tolist()), expected_law(LAW, **settings))
    assert value <= critical


class Constant:
    """A target whose law never changes, whatever it read; its drafter proposes by a law of its own."""

    def __init__(self, monkeypatch):
        self.target = scripted_target([1], [3] * 8, window=10**9)
        del self.target.model.layers[1:]  # they would only be kept
        self.target.config["vocab_size"] = len(LAW)
        logits = mx.log(mx.array(LAW))
        monkeypatch.setattr(self.target, "forward", lambda tokens, cache: self._forward(tokens, cache, logits))
        monkeypatch.setattr(type(self.target), "eos", frozenset())

    def _forward(self, tokens, cache, logits):
        with cache.writing(tokens):
            for entry in cache.entries:
                rows = tokens[:, None, :, None].astype(mx.float32)
                entry.update_and_fetch(rows, rows)
        return mx.broadcast_to(logits, (1, tokens.shape[1], len(LAW))), tokens[..., None].astype(mx.float32)


class CountingContext:
    """Knows how many rows it was given, and does not read them."""

    def __init__(self):
        self.length = 0
        self.arrays = []

    def append(self, rows, tokens):
        assert rows.shape[1] == len(tokens)
        self.length += len(tokens)

    def truncate(self, length):
        self.length = min(self.length, length)


class SamplingDrafter:
    """Proposes from a law of its own with the rule that it is given, three tokens at a time."""

    block = 3
    taps = (0,)
    has_confidence = False

    def __init__(self, law):
        self._logits = mx.log(mx.array(law))[None]

    def new_context(self):
        return CountingContext()

    def draft(self, context, anchor, cap, pick):
        from dspark.drafters.drafter import Draft

        return Draft(mx.concatenate([pick(self._logits, step, None) for step in range(min(cap, 3))]), None)


@pytest.mark.parametrize(
    ("draft_law", "settings", "draws"),
    [
        ((0.05, 0.05, 0.1, 0.8), {}, DRAWS // 2),
        ((0.4, 0.3, 0.2, 0.1), {"temperature": 0.7, "top_k": 3, "min_p": 0.2}, DRAWS // 2),
        (None, {"top_p": 0.9}, DRAWS),
    ],
    ids=str,
)
def test_the_whole_loop_emits_the_targets_law(monkeypatch, draft_law, settings, draws):
    """A7, A8, A10: 20,000 emitted tokens drafted, half of them with a bad law, and as many looked up."""
    constant = Constant(monkeypatch)
    drafter = SamplingDrafter(draft_law) if draft_law else None
    counts, accepted = Counter(), 0
    for seed in range(draws // 500):
        pilot = FixedPilot(3, drafter=drafter is not None, lookup=drafter is None)
        request = Request([1], max_tokens=500, sampling=Sampling(**{"temperature": 1.0, "seed": seed, **settings}))
        *_, last = Decoding(constant.target, drafter, pilot, request, lookup=drafter is None).events()
        assert isinstance(last, Finished)
        counts.update(last.tokens)
        accepted += last.statistics.accepted
    assert counts.total() == draws
    assert accepted > 1000, "nothing was accepted, so nothing was tested"
    value, critical = chi_square(counts, expected_law(LAW, **settings))
    assert value <= critical


def test_the_test_would_notice_an_argmax_taken_for_a_sample():
    """Negative control (A7): propose the argmax, accept by p/q with q = softmax, and the law is visibly wrong."""
    draw, counts, q = random.Random(5), Counter(), (0.7, 0.1, 0.1, 0.1)
    for _ in range(DRAWS):
        if draw.random() < min(1.0, LAW[0] / q[0]):
            counts[0] += 1
            continue
        rest = [max(p - r, 0.0) for p, r in zip(LAW, q, strict=True)]
        counts[draw.choices(range(4), rest)[0]] += 1
    value, critical = chi_square(counts, LAW)
    assert value > 10 * critical


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    engine = Engine()
    engine.load(LoadOptions(model=str(write_llama(root / "target")), drafter=str(write_head(root / "head"))))
    return engine


PROMPT = [5, 9, 33, 7, 40, 12]
MODES = {
    "lookup": SpeculationOptions("lookup"),
    "lookup3": SpeculationOptions("lookup", cap=3),
    "auto": SpeculationOptions("dspark"),
    "one": SpeculationOptions("dspark", cap=1, lookup=False),
    "all": SpeculationOptions("dspark", cap=5),
    "cut": SpeculationOptions("dspark", cap=5, confidence=0.5),
}
SETTINGS = {
    "hot": {"temperature": 1.0},
    "nucleus": {"temperature": 0.8, "top_p": 0.9},
    "top": {"temperature": 0.8, "top_k": 5, "min_p": 0.05},
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.3},
    "presence": {"temperature": 0.7, "presence_penalty": 1.5},
    "frequency": {"temperature": 0.7, "frequency_penalty": 1.5, "logit_bias": {5: 3.0}},
    "bias": {"temperature": 0.0, "logit_bias": {7: 4.0}},
}


def answer(engine, speculation, prompt=PROMPT, max_tokens=40, **sampling):
    request = Request(prompt, max_tokens=max_tokens, speculation=speculation, sampling=Sampling(**sampling))
    *_, last = engine.generate(request)
    return last


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SETTINGS)
def test_an_equal_seed_gives_equal_tokens_in_every_mode(engine, mode, name):
    """Stronger than equality in law: also A22, A26 (penalties see the committed tokens and the draft before them)."""
    for seed in (1, 2):
        plain = answer(engine, SpeculationOptions("baseline"), seed=seed, **SETTINGS[name])
        assert answer(engine, MODES[mode], seed=seed, **SETTINGS[name]).tokens == plain.tokens


@pytest.mark.parametrize("name", ["repetition", "presence", "frequency", "bias"])
def test_penalties_and_biases_do_something(engine, name):
    settings = SETTINGS[name]
    bare = {"temperature": settings["temperature"]}
    baseline = SpeculationOptions("baseline")
    with_, without = (
        [answer(engine, baseline, seed=seed, **some).tokens for seed in range(3)] for some in (settings, bare)
    )
    assert with_ != without


def test_penalties_are_mlx_lms(engine, tmp_path):
    from mlx_lm import stream_generate
    from mlx_lm.sample_utils import make_logits_processors

    pair = engine._pair.target
    processors = make_logits_processors(repetition_penalty=1.3, frequency_penalty=0.5, logit_bias={7: 1.0})
    stock = [
        r.token
        for r in stream_generate(pair.model, pair.tokenizer, PROMPT, max_tokens=30, logits_processors=processors)
    ]
    settings = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {7: 1.0}}
    assert list(answer(engine, MODES["all"], max_tokens=30, **settings).tokens) == stock


def test_seeds_are_kept_apart(engine):
    """A25: same seed same text, other seeds other texts, no seed varies, and nothing global is read or disturbed."""
    auto = MODES["auto"]
    same = {answer(engine, auto, temperature=1.0, seed=1).tokens for _ in range(3)}
    mx.random.seed(99)
    state = [part.tolist() for part in mx.random.state]
    same.add(answer(engine, auto, temperature=1.0, seed=1).tokens)
    assert len(same) == 1 and [part.tolist() for part in mx.random.state] == state
    assert len({answer(engine, auto, temperature=1.0, seed=s).tokens for s in range(5)}) == 5
    assert len({answer(engine, auto, temperature=1.0).tokens for _ in range(5)}) == 5


@pytest.mark.parametrize(
    "speculation", [SpeculationOptions("baseline"), MODES["all"], MODES["lookup"]], ids=["plain", "all", "lookup"]
)
def test_log_probabilities_are_the_verifiers_raw_ones(engine, speculation):
    """A23: penalties change the choice, not the reported law; one entry per emitted token."""
    settings = {"temperature": 0.9, "seed": 4, "frequency_penalty": 1.5, "top_logprobs": 3}
    last = answer(engine, speculation, **settings)
    assert [entry.token for entry in last.logprobs] == list(last.tokens)
    target = engine._pair.target
    target.tap(())
    logits, _ = target.forward(mx.array([[*PROMPT, *last.tokens]]), target.new_cache())
    law = logits[0] - mx.logsumexp(logits[0], axis=-1, keepdims=True)
    for at, entry in enumerate(last.logprobs):
        row = law[len(PROMPT) - 1 + at]
        assert entry.logprob == pytest.approx(float(row[entry.token].item()), abs=1e-3)
        best = sorted(range(64), key=lambda i: -float(row[i].item()))[:3]
        assert [token for token, _ in entry.top] == best
    request = Request(PROMPT, max_tokens=40, speculation=speculation, sampling=Sampling(**settings))
    streamed = [e.logprobs for e in engine.generate(request) if isinstance(e, RoundCommitted)]
    assert tuple(itertools.chain.from_iterable(streamed)) == last.logprobs


@pytest.mark.parametrize("max_tokens", range(1, 9))
@pytest.mark.parametrize("rule", [oracle, liar, alternating(1), None])
def test_one_log_probability_per_token_on_every_exit(max_tokens, rule):
    """A4."""
    script = [10, 41, 42, 11, 12, 2, 5, 5]
    for stop in ((), ("STOP",)):
        target = scripted_target([1], script)
        drafter = ToyDrafter([1, *script], 5, rule) if rule else None
        pilot = FixedPilot(5, drafter=True, lookup=False) if rule else PlainPilot()
        request = Request([1], max_tokens=max_tokens, stop=stop, sampling=Sampling(top_logprobs=0))
        *_, last = Decoding(target, drafter, pilot, request, lookup=False).events()
        assert [entry.token for entry in last.logprobs] == list(last.tokens)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 1.5},
        {"presence_penalty": 2.5},
        {"frequency_penalty": math.inf},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -1.0},
        {"logit_bias": {64: 1.0}},
        {"logit_bias": {3: math.nan}},
        {"top_logprobs": 21},
        {"top_logprobs": True},
        {"seed": 1.5},
        {"top_k": 2.0},
        {"logit_bias": {7.5: 1.0}},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_by_name(engine, settings):
    """A22: a repetition penalty of 0 or less included."""
    with pytest.raises(UsageError, match=next(iter(settings))):
        answer(engine, SpeculationOptions("baseline"), **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1e-45},
        {"temperature": 5e-324},
        {"top_p": 1e-300},
        {"top_p": 1e-9, "top_k": 1, "min_p": 1.0},
        {"logit_bias": {1: 1e300}},
        {"logit_bias": {0: -1e300, 2: -1e300, 3: -1e300}},
        {"logit_bias": {1: 1e39, 0: -1e39}, "temperature": 0.0},
        {"repetition_penalty": 1e-300},
    ],
    ids=str,
)
def test_settings_at_the_end_of_their_range_still_choose_a_token(settings):
    """What float32 cannot hold must not turn the law into junk, which would say token 0."""
    law = mx.log(mx.array([[0.1, 0.6, 0.2, 0.1]])) + 5.0
    chooser = Chooser(Sampling(**{"temperature": 1.0, "seed": 1, **settings}), 4)
    chosen = chooser.choose(chooser.process(law, [1]) + mx.zeros((50, 1)), chooser.noise(0, 50))
    assert set(chosen.tolist()) == {1}


def test_rare_tokens_are_drawn_as_often_as_they_should():
    """Noise in steps of 2**-24 ends at 16.6: no token a million times rarer than the likeliest would ever win."""
    chooser = Chooser(Sampling(temperature=1.0, seed=2), 1 << 20)
    loudest = max(float(chooser.noise(place, 1).max().item()) for place in range(48))
    assert 16.7 < loudest < 23.0  # of 5e7 draws; the largest is about log(5e7) = 17.7
