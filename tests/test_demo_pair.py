"""The demo pair, for real: the shipped head and the reference heads against an independent reference.

`acceptance.json` and the fixtures come from a PyTorch implementation over whole sequences, without caches.
"""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from dspark.decoding.events import Finished, RoundCommitted
from dspark.decoding.request import Request, SpeculationOptions
from dspark.drafters.loading import load_drafter
from dspark.engine import Engine, LoadOptions
from dspark.hub import demo

pytestmark = pytest.mark.real

HEADS = ("smollm2-dspark", "smollm2-dspark-8k", "smollm2-dflash")


@pytest.fixture(scope="module")
def target(demo_engine):
    return demo_engine._pair.target


def accepted_per_round(engine, reference):
    """Rounds and settled tokens over the reference's prompts at its cap; checks the ids on the way.

    The reference lets its last round run past the budget, so a few more tokens are decoded here, and rounds are counted
    until the reference's answer is covered.
    """
    rounds = settled = 0
    for prompt in reference["prompts"]:
        expected = [t for t in prompt["output_ids"] if t != 2]
        request = Request(
            engine.encode_chat(prompt["prompt"]),
            max_tokens=len(prompt["output_ids"]) + reference["cap"],
            speculation=SpeculationOptions(engine.loaded.modes[-1], cap=reference["cap"], lookup=False),
        )
        after_first = len(prompt["output_ids"]) - 1
        seen = 0
        for event in engine.generate(request):
            if isinstance(event, RoundCommitted) and event.index > 0 and seen < after_first:
                rounds += 1
                seen += event.accepted + 1
            if isinstance(event, Finished):
                assert list(event.tokens[: len(expected)]) == expected
        settled += min(seen, after_first) if prompt["output_ids"][-1] == 2 else seen
    return settled / rounds


def test_the_shipped_head_is_accepted_as_often_as_the_reference(demo_engine):
    reference = json.loads((Path(__file__).parent / "data" / "acceptance-8k.json").read_text())
    assert accepted_per_round(demo_engine, reference) == pytest.approx(reference["summary"]["all"], rel=0.01)


@pytest.mark.parametrize("head", HEADS)
def test_reference_heads_are_accepted_as_often_as_the_reference(reference_heads, demo_engine, head):
    reference = json.loads((reference_heads / head / "acceptance.json").read_text())
    engine = Engine()
    engine.load(LoadOptions(model=str(demo.target("fp32")), drafter=str(reference_heads / head)))
    assert accepted_per_round(engine, reference) == pytest.approx(reference["summary"]["all"], rel=0.01)


@pytest.mark.parametrize("head", HEADS)
def test_reference_heads_compute_what_the_reference_computes(reference_heads, target, head):
    drafter = load_drafter(reference_heads / head, target)
    fixture = mx.load(str(reference_heads / head / "fixture.safetensors"))
    target.tap(drafter.taps)
    for case in ("case0", "case1", "case2"):
        value = {name.removeprefix(f"{case}."): array for name, array in fixture.items() if name.startswith(case)}
        ids = value["ids"].astype(mx.int32)
        logits, rows = target.forward(ids[None], target.new_cache())
        assert mx.abs(rows[0] - value["taps"]).max() <= 5e-3 * mx.abs(value["taps"]).max()
        assert close(logits[0, -1], value["target_logits_last_row"])
        for at, position in enumerate(value["anchors"].tolist()):
            context = drafter.new_context()
            context.append(rows[:, :position])
            anchor = ids[position : position + 1]
            hidden = drafter.hidden(context, anchor)[0]
            draft = drafter.propose(hidden, anchor)
            assert draft.tokens.tolist() == value["draft_tokens"][at].tolist()
            assert close(hidden, value["block_hidden"][at])
            if drafter.config.confidence is not None:
                assert close(draft.confidence, value["confidence"][at])
            if at == 0:
                assert close(drafter.step_logits(hidden, anchor), value["draft_logits_first_anchor"])


def close(ours, theirs):
    """Within 2e-3 absolute plus 1e-3 relative."""
    return bool((mx.abs(ours - theirs) <= 2e-3 + 1e-3 * mx.abs(theirs)).all().item())


def test_taps_read_unshifted_cost_acceptance_and_nothing_else(reference_heads, target):
    """M2, the known trap: the speculators packaging numbers its taps from 1."""
    head = reference_heads / "smollm2-dspark-8k"
    config = json.loads((head / "config.json").read_text())
    drafter = load_drafter(head, target)
    assert list(drafter.taps) == [i - 1 for i in config["aux_hidden_state_layer_ids"]] == [1, 8, 15, 22, 28]


def test_plain_against_plain_and_drafted_against_drafted(demo_engine):
    """A19: each arm agrees with itself, and both with each other, on a real model."""
    for prompt in ("Write a haiku about rain.", "What is 17 times 3?", "List three rivers."):
        ids = demo_engine.encode_chat(prompt)
        runs = []
        for options in (SpeculationOptions("baseline"), SpeculationOptions("dspark", cap=7)) * 2:
            *_, last = demo_engine.generate(Request(ids, max_tokens=24, speculation=options))
            runs.append(last.tokens)
        assert runs[0] == runs[2] and runs[1] == runs[3]
        if runs[0] != runs[1]:
            at = next(i for i, (a, b) in enumerate(zip(runs[0], runs[1], strict=False)) if a != b)
            top = demo_engine.top_two([*ids, *runs[0][:at]])
            assert {runs[0][at], runs[1][at]} == {top.first, top.second} and top.gap < 1e-3
