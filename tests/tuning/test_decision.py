"""What is derived from curves and recorded answers, against what is right by construction."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import answer, deepening, machine, rates, throughput

from dspark.tuning.costs import CostModel
from dspark.tuning.decision import OVERALL, Evidence, Setting, decide
from dspark.tuning.pilot import AutoPilot, FixedPilot, PlainPilot
from dspark.tuning.simulation import replay
from dspark.tuning.timing import robust
from dspark.tuning.traces import Place, Trace

BLOCK = 7
FREE = CostModel(tuple((width, 10.0) for width in range(1, 33)), ((1, 0.1), (7, 0.1)), "test")
LINEAR = CostModel(tuple((width, 10.0 * width) for width in range(1, 33)), ((1, 1.0), (7, 2.0)), "test")


def evidence(costs, chances, seed=0, tokens=500, classes=("chat", "code"), **settings):
    draw = random.Random(seed)
    traces = [answer(draw, chances, tokens, klass) for klass in classes for _ in range(2)]
    return Evidence(costs, traces, BLOCK, lookup=False, **settings)


def test_on_500_machines_the_cap_is_the_oracles_or_as_good_and_never_loses():
    """Random monotone curves with knees and cliffs, random acceptance; noisy curves and finite answers to judge by."""
    near, worst = 0, 2.0
    for seed in range(500):
        draw = random.Random(seed)
        true, seen = machine(draw, BLOCK, noise=0.01)
        chances = rates(draw, BLOCK)
        cap = decide(evidence(seen, chances, seed, tokens=300, noise=0.01)).overall.setting.cap
        reached = throughput(true, chances, cap) if cap else 1.0
        best = max(1.0, *(throughput(true, chances, k) for k in range(1, BLOCK + 1)))
        near += reached >= 0.98 * best
        worst = min(worst, reached)
    assert near >= 0.95 * 500
    assert worst >= 0.99


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_a_cap_is_never_out_of_range_and_plain_is_a_valid_answer(seed):
    draw = random.Random(seed)
    _, seen = machine(draw, BLOCK, noise=0.2)
    found = decide(evidence(seen, rates(draw, BLOCK), seed, tokens=60))
    for choice in (found.overall, *found.classes.values()):
        assert 0 <= choice.setting.cap <= BLOCK and choice.speedup.value >= 1.0
    assert found.default.cap in ("auto", *range(BLOCK + 1))


@pytest.mark.parametrize("seed", range(5))
def test_the_cap_grows_with_acceptance_and_shrinks_with_cost(seed):
    costs = CostModel(((1, 10.0), (8, 24.0)), ((1, 1.0), (7, 2.0)), "test")
    caps = [decide(evidence(costs, [rate] * BLOCK, seed)).overall.setting.cap for rate in (0.1, 0.5, 0.7, 0.85, 0.97)]
    assert caps == sorted(caps) and caps[0] == 0 and caps[-1] > caps[1]
    steeper = [
        CostModel(((1, 10.0), (8, 10.0 + 7 * each)), ((1, 1.0), (7, 2.0)), "test") for each in (0.0, 1.0, 4.0, 10.0)
    ]
    caps = [decide(evidence(costs, [0.8] * BLOCK, seed)).overall.setting.cap for costs in steeper]
    assert caps == sorted(caps, reverse=True) and caps[0] == BLOCK and caps[-1] == 0


def test_b1_where_rows_cost_in_full_the_answer_is_not_to_speculate():
    found = decide(evidence(LINEAR, [0.6] * BLOCK))
    assert found.overall.setting.cap == 0 and found.default == Setting(0)
    assert found.overall.tried_speedup.value < 1.0
    assert found.reason.startswith("do not speculate here: 0.")


def test_free_rows_take_the_whole_block():
    found = decide(evidence(FREE, [0.95] * BLOCK))
    assert found.overall.setting.cap == BLOCK and found.overall.speedup.value > 3


def test_b3_the_cap_shrinks_with_depth_and_only_where_depth_costs():
    growing = evidence(deepening(0.2), [0.8] * BLOCK)
    caps = {depth: choice.setting.cap for depth, choice in decide(growing, (1024, 4096, 32768)).depths.items()}
    assert caps[1024] == decide(growing).overall.setting.cap
    assert caps[32768] < caps[4096] <= caps[1024]
    flat = decide(evidence(deepening(0.0), [0.8] * BLOCK), (1024, 4096, 32768))
    assert {choice.setting.cap for choice in flat.depths.values()} == {flat.overall.setting.cap}


def test_b6_an_outlier_changes_nothing_and_the_smallest_of_near_ties_is_taken():
    observed = {width: [10.0 + 0.02 * k for k in range(9)] for width in range(1, 9)}
    observed[5][3] *= 10
    model = CostModel(
        tuple((width, robust(values).ms) for width, values in observed.items()), ((1, 0.1), (7, 0.1)), "test"
    )
    right_up_to_four = Trace("chat", 10, tuple(Place(drafted=4) for _ in range(500)))
    rising = CostModel(tuple((w, ms * (1.03 if w > 5 else 1.0)) for w, ms in model.verify), model.draft, "test")
    found = decide(Evidence(rising, [right_up_to_four], BLOCK, lookup=False))
    assert found.overall.setting.cap == 4
    # Two caps within the tie: a fifth token that nearly never comes is not worth a wider forward.
    nearly = Trace("chat", 10, tuple(Place(drafted=5 if k % 100 == 0 else 4) for k in range(500)))
    assert decide(Evidence(model, [nearly], BLOCK, lookup=False)).overall.setting.cap == 4


def test_a_gain_that_chance_explains_is_not_taken():
    """Twelve tokens in which drafting happens to gain say nothing."""
    costs = CostModel(((1, 10.0), (8, 24.0)), ((1, 1.0), (7, 2.0)), "test")
    lucky = Trace("chat", 10, tuple(Place(drafted=right) for right in (3, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 1)))
    found = decide(Evidence(costs, [lucky], BLOCK, lookup=False))
    assert found.overall.setting.cap == 0 and "chance" in found.reason


def test_each_class_gets_its_own_choice():
    draw = random.Random(1)
    traces = [answer(draw, [0.95] * BLOCK, 500, "code"), answer(draw, [0.02] * BLOCK, 500, "chat")]
    costs = CostModel(((1, 10.0), (8, 14.0)), ((1, 1.0), (7, 1.5)), "test")
    found = decide(Evidence(costs, traces, BLOCK, lookup=False))
    assert found.classes["code"].setting.cap >= BLOCK - 1 and found.classes["chat"].setting.cap == 0


def test_lookup_alone_is_chosen_where_only_it_pays():
    copying = Trace("copy", 10, tuple(Place(suffix=30 + k, offered=32, matched=400 - k) for k in range(400)))
    found = decide(Evidence(FREE, [copying], 0))
    assert found.overall.setting.means == "lookup" and found.default.means == "lookup"
    assert decide(Evidence(LINEAR, [copying], 0)).default == Setting(0)


@pytest.mark.parametrize("seed", range(8))
def test_the_controller_is_as_good_as_the_best_fixed_cap_and_better_on_a_mixture(seed):
    draw = random.Random(seed)
    costs = CostModel(((1, 10.0), (4, 12.0), (8, 15.0)), ((1, 1.0), (7, 1.4)), "test")
    easy, hard = [0.93] * BLOCK, [0.05] * BLOCK
    mixed = Trace("mixed", 10, answer(draw, easy, 600).places + answer(draw, hard, 600).places)

    def rate(trace, pilot):
        result = replay(trace, pilot, costs)
        return result.tokens / result.ms

    fixed = [rate(mixed, FixedPilot(cap, drafter=True, lookup=False)) for cap in range(1, BLOCK + 1)]
    assert rate(mixed, AutoPilot(costs, max_cap=32, block=BLOCK, lookup=False)) > max(*fixed, rate(mixed, PlainPilot()))


@pytest.mark.parametrize("seed", range(6))
def test_measured_twice_the_cap_is_the_same(seed):
    """Noise may move a near tie; what was chosen before stays as long as it is as good."""
    draw = random.Random(seed)
    true, _ = machine(draw, BLOCK)
    chances = rates(draw, BLOCK)

    def measured(before):
        verify = tuple((width, ms * (1 + draw.gauss(0, 0.008))) for width, ms in true.verify)
        return decide(evidence(CostModel(verify, true.draft, "again"), chances, seed, noise=0.008, before=before))

    first = measured({})
    for _ in range(5):
        again = measured({OVERALL: first.overall.setting})
        assert again.overall.setting == first.overall.setting


def test_a_cap_that_has_become_worse_is_given_up():
    before = {OVERALL: Setting(1, True)}
    assert decide(evidence(FREE, [0.95] * BLOCK, before=before)).overall.setting.cap == BLOCK
    assert decide(evidence(LINEAR, [0.5] * BLOCK, before=before)).overall.setting.cap == 0
