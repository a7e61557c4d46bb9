"""Constraints in the loop: the ids are those of plain decoding under the same constraint, whatever is speculated."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import mlx.core as mx
import pytest
from tiny import write_head, write_llama
from toys import (
    EOS,
    VOCABULARY,
    RecordingContext,
    ScriptedModel,
    ToyDrafter,
    alternating,
    liar,
    oracle,
    scripted_target,
)

from dspark.decoding.events import Finished, RoundCommitted
from dspark.decoding.loop import Decoding
from dspark.decoding.request import Request, Sampling, SpeculationOptions
from dspark.decoding.round import Rounds
from dspark.decoding.sampling import Chooser
from dspark.drafters.drafter import Draft
from dspark.engine import Engine, LoadOptions
from dspark.errors import ConstraintDeadEnd
from dspark.targets.target import Target
from dspark.tuning.pilot import FixedPilot, PlainPilot


@dataclass
class Turns:
    """Hand-written: every token decides which third of the vocabulary the later ones come from; `length` tokens end it.

    So what may come depends on every token before it, not on the place alone.
    """

    length: int | None = None
    eos: int = EOS
    vocabulary: int = VOCABULARY
    taken: list[int] = field(default_factory=list)
    stuck_at: int | None = None

    def idle(self, tokens: int) -> bool:
        return False

    def allowed(self, before: Sequence[int]) -> set[int]:
        if len(before) == self.stuck_at:
            return set()
        if self.length is not None and len(before) >= self.length:
            return {self.eos}
        wanted = sum(t // 3 for t in before) % 3
        return {t for t in range(self.vocabulary) if t != self.eos and t % 3 == wanted}

    def admitted(self, draft: Sequence[int]) -> int:
        assert self.eos not in draft
        wrong = (k for k, t in enumerate(draft) if t not in self.allowed([*self.taken, *draft[:k]]))
        return next(wrong, len(draft))

    def masks(self, draft: Sequence[int]) -> mx.array:
        assert self.admitted(draft) == len(draft), "a forbidden draft reached the target"
        rows = [self.allowed([*self.taken, *draft[:k]]) for k in range(len(draft) + 1)]
        return mx.array([[t in row for t in range(self.vocabulary)] for row in rows])

    def advance(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token not in self.allowed(self.taken):
                raise ConstraintDeadEnd("nothing may follow")
            self.taken.append(token)


@cache
def opinion(tokens: tuple[int, ...]) -> list[float]:
    draw = random.Random(str(tokens))
    return [draw.gauss(0.0, 2.0) for _ in range(VOCABULARY)]


class Opinionated(ScriptedModel):
    """Its logits are a fixed random function of everything in its cache, or of the newest `memory` tokens."""

    def __init__(self, memory: int | None = None) -> None:
        super().__init__([], [])
        self.memory = memory

    def __call__(self, inputs, cache):
        hidden = inputs[..., None].astype(mx.float32)
        for layer, entry in zip(self.layers, cache, strict=True):
            hidden = layer(hidden, None, entry)
        width, held = inputs.shape[1], self.layers[-1].held
        seen = [held[: len(held) - width + j + 1][-(self.memory or len(held)) :] for j in range(width)]
        return mx.array([opinion(tuple(tokens)) for tokens in seen])[None] + 0.0 * hidden


def opinionated(memory: int | None = None) -> Target:
    target = scripted_target([], [])
    target.model = Opinionated(memory)
    return target


def decode(truth=None, *, rule=None, block=4, lookup=False, memory=None, constraint, prompt=(5, 9, 3), **request):
    """The last event, and the decoding after it."""
    target = opinionated(memory)
    drafter = ToyDrafter(truth, block, rule) if rule else None
    pilot = FixedPilot(block, drafter=drafter is not None, lookup=lookup) if rule or lookup else PlainPilot()
    asked = Request(list(prompt), constraint=lambda _: constraint(), **request)
    decoding = Decoding(target, drafter, pilot, asked, lookup=lookup)
    *_, last = decoding.events()
    assert isinstance(last, Finished)
    sequence = decoding.sequence
    held = [int(t) for t in sequence.cache.entries[0].keys[0, 0, : sequence.cache.length, 0].tolist()]
    assert held == sequence.record == sequence.tokens[: sequence.cache.length]
    assert drafter is None or drafter.contexts[-1].rows == sequence.record
    return last, decoding


def by_chance(ahead, count):
    """Right, wrong but admitted, forbidden, or the end of the answer, as it falls."""
    return [
        draw.choice([t, t, t, (t + 3) % 60, (t + 1) % 60, EOS]) for draw in [random.Random(str(ahead))] for t in ahead
    ]


RULES = {"oracle": oracle, "liar": liar, "alternating": alternating(1), "random": by_chance, "lookup": None}
EXITS = {
    "eos": {"length": 23},
    "budget": {"max_tokens": 17},
    "stop": {"stop": 11},
    "cancel": {"cancel": 5},
    "penalties": {"sampling": {"repetition_penalty": 1.4, "frequency_penalty": 0.7, "logit_bias": {6: 2.0, 7: 90.0}}},
    "filters": {"sampling": {"temperature": 0.8, "top_p": 0.9, "top_k": 7, "min_p": 0.02}},
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("exit_", EXITS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("block", [1, 4, 7])
def test_the_answer_is_the_plain_one(rule, block, exit_, temperature):
    how = EXITS[exit_]
    lookup = rule == "lookup"
    common = {
        "constraint": lambda: Turns(how.get("length")),
        "max_tokens": how.get("max_tokens", 40),
        "sampling": Sampling(**{"temperature": temperature, "seed": 4, "top_logprobs": 2, **how.get("sampling", {})}),
        "memory": 1 if lookup else None,
    }
    plain, _ = decode(**common)
    truth = [5, 9, 3, *plain.tokens, *([EOS] if plain.reason == "stop" else [])]
    if "stop" in how:
        common["stop"] = (opinionated().tokenizer.decode(list(plain.tokens[how["stop"] : how["stop"] + 2])),)
        plain, _ = decode(**common)
        assert plain.reason == "stop" and len(plain.tokens) < 40
    if "cancel" in how:
        polled = itertools.count()
        common["cancelled"] = lambda: next(polled) > how["cancel"]
    last, _ = decode(truth, rule=RULES[rule], block=block, lookup=lookup, **common)
    if "cancel" in how:
        assert last.tokens == plain.tokens[: len(last.tokens)] and last.reason == "cancelled"
    else:
        assert (last.tokens, last.reason, last.text) == (plain.tokens, plain.reason, plain.text)
        for one, other in zip(last.logprobs, plain.logprobs, strict=True):
            assert (one.token, one.logprob) == (other.token, pytest.approx(other.logprob, abs=1e-5))
    if rule == "oracle":
        assert last.statistics.accepted > 0
    if exit_ == "eos":
        assert (last.reason, len(last.tokens)) == ("stop", 23)


def test_speculation_by_lookup_is_really_on():
    last, _ = decode(lookup=True, block=8, memory=1, constraint=Turns, max_tokens=200)
    plain, _ = decode(memory=1, constraint=Turns, max_tokens=200)
    assert last.tokens == plain.tokens and last.statistics.accepted > 20


def test_a_draft_is_cut_where_it_is_forbidden():
    """An oracle that errs only by forbidden tokens never has one verified: all that is drafted is accepted."""
    plain, _ = decode(constraint=Turns, max_tokens=40)
    rule = lambda ahead, count: [*ahead[:2], *((t + 1) % 60 + 3 * ((t + 1) % 60 == EOS) for t in ahead[2:])]  # noqa: E731
    last, _ = decode([5, 9, 3, *plain.tokens], rule=rule, constraint=Turns, max_tokens=40)
    assert last.tokens == plain.tokens
    assert last.statistics.drafted == last.statistics.accepted > 20
    assert len(last.statistics.offered_at) == 2


def test_a_look_up_that_is_wholly_forbidden_is_a_plain_round():
    """The first token repeats the prompt, what is looked up behind it is forbidden."""

    class Turning(Turns):
        def allowed(self, before):
            return {20 + len(before)} if before else {10}

    asked = Request([10, 11, 12, 13] * 4, 4, constraint=lambda _: Turning())
    pilot = FixedPilot(4, drafter=False, lookup=True)
    *_, last = Decoding(opinionated(), None, pilot, asked, lookup=True).events()
    assert last.tokens == (10, 21, 22, 23)
    assert (last.statistics.lookup_rounds, last.statistics.plain_rounds, last.statistics.drafted) == (0, 3, 0)


@pytest.mark.parametrize("ids", [None, [3, 1, 2]])
def test_a_drafter_is_told_what_may_come_first(ids):
    """Its first step picks among the allowed ones, in its own ids; later steps are not known yet."""
    allowed = mx.array([[True, False, True, False]])
    pick = Chooser(Sampling(), 4).pick(None, allowed)
    logits = mx.array([[0.0, 3.0, 2.0, 1.0]])[:, : 4 if ids is None else 3]
    support = None if ids is None else mx.array(ids)
    assert pick(logits, 0, support).item() == 2
    assert pick(logits, 1, support).item() == 1


@pytest.mark.parametrize("rule", [None, oracle])
def test_a_dead_end_is_an_error_and_emits_nothing(rule):
    plain, _ = decode(constraint=Turns, max_tokens=20)
    emitted = []
    target = opinionated()
    drafter = ToyDrafter([5, 9, 3, *plain.tokens], 4, rule) if rule else None
    pilot = FixedPilot(4, drafter=True, lookup=False) if rule else PlainPilot()
    asked = Request([5, 9, 3], constraint=lambda _: Turns(stuck_at=7), max_tokens=20)
    decoding = Decoding(target, drafter, pilot, asked, lookup=False)
    with pytest.raises(ConstraintDeadEnd):
        for event in decoding.events():
            emitted += event.tokens if isinstance(event, RoundCommitted) else ()
    assert emitted == list(plain.tokens[: len(emitted)]) and len(emitted) <= 7
    assert decoding.sequence.record == [5, 9, 3, *emitted][: decoding.sequence.cache.length]


class FedAhead(Turns):
    """Free for its first ten tokens, a constraint after that."""

    def idle(self, tokens):
        return len(self.taken) + tokens <= 10

    def allowed(self, before):
        return set(range(VOCABULARY)) if len(before) < 10 else super().allowed(before)


def test_plain_steps_are_fed_ahead_while_the_constraint_is_idle_and_only_then(monkeypatch):
    ahead = []
    submit_after = Rounds.submit_after

    def spy(self, sequence, pending):
        submission = submit_after(self, sequence, pending)
        ahead.append((len(sequence.stop.tokens), submission is not None))
        return submission

    monkeypatch.setattr(Rounds, "submit_after", spy)
    last, _ = decode(constraint=FedAhead, max_tokens=30)
    assert [fed for at, fed in ahead if at <= 8] == [True] * 9
    assert not any(fed for at, fed in ahead if at > 8)
    free, _ = decode(constraint=lambda: FedAhead(stuck_at=None), max_tokens=10)
    assert last.tokens[:10] == free.tokens
    checked = FedAhead()
    checked.advance(last.tokens)


LAW = (0.4, 0.25, 0.15, 0.1, 0.06, 0.04)


def test_draws_follow_the_law_that_the_constraint_leaves(monkeypatch):
    """Chi-square, drafted and plain: each place draws from the law over its allowed tokens, renormalized."""
    target = scripted_target([], [], window=10**9)
    target.config["vocab_size"] = len(LAW)
    del target.model.layers[1:]  # they would only be kept
    logits = mx.log(mx.array(LAW))

    def forward(tokens, cache):
        with cache.writing(tokens):
            for entry in cache.entries:
                rows = tokens[:, None, :, None].astype(mx.float32)
                entry.update_and_fetch(rows, rows)
        return mx.broadcast_to(logits, (1, tokens.shape[1], len(LAW))), tokens[..., None].astype(mx.float32)

    monkeypatch.setattr(target, "forward", forward)
    monkeypatch.setattr(type(target), "eos", frozenset())

    class Drafter:
        block, taps, has_confidence = 3, (0,), False

        def new_context(self):
            return RecordingContext()

        def draft(self, context, anchor, cap, pick):
            guess = mx.log(mx.array([0.3, 0.1, 0.2, 0.1, 0.2, 0.1]))[None]
            return Draft(mx.concatenate([pick(guess, step, None) for step in range(min(cap, 3))]), None)

    constraint = lambda _: Turns(eos=-1, vocabulary=len(LAW))  # noqa: E731
    counts: dict[int, Counter[int]] = {0: Counter(), 1: Counter(), 2: Counter()}
    accepted = 0
    for seed in range(100):
        asked = Request([1], 100, sampling=Sampling(temperature=1.0, seed=seed), constraint=constraint)
        *_, last = Decoding(target, Drafter(), FixedPilot(3, drafter=True, lookup=False), asked, lookup=False).events()
        accepted += last.statistics.accepted
        for k, token in enumerate(last.tokens):
            counts[sum(t // 3 for t in last.tokens[:k]) % 3][token] += 1
    assert accepted > 1000 and sum(c.total() for c in counts.values()) == 10_000
    for remainder, seen in counts.items():
        live = [t for t in range(len(LAW)) if t % 3 == remainder]
        assert set(seen) == set(live)
        mass = sum(LAW[t] for t in live)
        expected = [seen.total() * LAW[t] / mass for t in live]
        value = sum((seen[t] - e) ** 2 / e for t, e in zip(live, expected, strict=True))
        assert value <= 19.5  # one degree of freedom, a chance of 1e-5


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    engine = Engine()
    engine.load(LoadOptions(model=str(write_llama(root / "target")), drafter=str(write_head(root / "head"))))
    return engine


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 0.7, "top_p": 0.9, "seed": 2}]
)
@pytest.mark.parametrize(
    "speculation",
    [
        SpeculationOptions("lookup"),
        SpeculationOptions("dspark"),
        SpeculationOptions("dspark", cap=5, lookup=False),
        SpeculationOptions("dspark", cap=5, confidence=0.3),
    ],
    ids=str,
)
def test_a_real_pair_says_what_it_says_plainly(engine, speculation, settings):
    def answer(mode):
        sampling = Sampling(**{"seed": 2, **settings})
        asked = Request([5, 9, 33], 50, speculation=mode, sampling=sampling, constraint=lambda _: Turns(length=41))
        *_, last = engine.generate(asked)
        return last

    plain = answer(SpeculationOptions("baseline"))
    assert (plain.reason, len(plain.tokens)) == ("stop", 41)
    assert answer(speculation).tokens == plain.tokens
