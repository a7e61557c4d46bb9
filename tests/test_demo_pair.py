"""The demo pair, for real: the shipped head and the reference heads against an independent reference.

`acceptance.json` and the fixtures come from a PyTorch implementation over whole sequences, without caches.
"""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from benchmarks import acceptance

from dspark.decoding.request import Request, SpeculationOptions
from dspark.drafters.loading import load_drafter
from dspark.engine import Engine, LoadOptions
from dspark.hub import demo

pytestmark = pytest.mark.real

HEADS = ("smollm2-dspark", "smollm2-dspark-8k", "smollm2-dflash")


@pytest.fixture(scope="module")
def target(demo_engine):
    return demo_engine._pair.target


# The prompts that are shortest to decode, one a class; `tests/benchmarks/acceptance.py` decodes all twelve.
CHAT, CODE, MATH, COPY = 0, 3, 7, 10


def live_rounds(engine, reference, prompts):
    """Rounds that the reference's answers take, decoded live; checks their ids on the way."""
    counts = []
    for prompt in (reference["prompts"][i] for i in prompts):
        rounds, tokens = acceptance.decode(engine, prompt, reference["cap"])
        expected = [t for t in prompt["output_ids"] if t not in engine.loaded.eos]
        assert list(tokens[: len(expected)]) == expected
        counts.append(rounds)
    return counts


def test_the_shipped_head_needs_as_many_rounds_as_the_reference(demo_engine):
    """Its 8-bit weights may flip a draft at a near-tie: one round in these 98 is the tolerance."""
    reference = json.loads((Path(__file__).parent / "data" / "acceptance-8k.json").read_text())
    prompts = (CHAT, CODE, MATH, COPY)
    expected = sum(reference["prompts"][i]["rounds"] for i in prompts)
    assert abs(sum(live_rounds(demo_engine, reference, prompts)) - expected) <= 1


@pytest.mark.parametrize("head", HEADS)
def test_reference_heads_need_exactly_as_many_rounds_as_the_reference(reference_heads, head):
    reference = json.loads((reference_heads / head / "acceptance.json").read_text())
    engine = Engine()
    engine.load(LoadOptions(model=str(demo.target("fp32")), drafter=str(reference_heads / head)))
    expected = [reference["prompts"][i]["rounds"] for i in (CHAT, COPY)]
    assert live_rounds(engine, reference, (CHAT, COPY)) == expected


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


def test_the_speculators_packaging_numbers_its_taps_from_one(reference_heads, target):
    """M2, the known trap: reading them unshifted keeps the text right and costs rounds."""
    head = reference_heads / "smollm2-dspark-8k"
    config = json.loads((head / "config.json").read_text())
    drafter = load_drafter(head, target)
    assert list(drafter.taps) == [i - 1 for i in config["aux_hidden_state_layer_ids"]] == [1, 8, 15, 22, 28]


def test_plain_against_plain_and_drafted_against_drafted(demo_engine):
    """A19: each arm agrees with itself, and both with each other, on a real model."""
    for prompt in ("Write a haiku about rain.", "What is 17 times 3?"):
        ids = demo_engine.encode_chat(prompt)
        runs = []
        for options in (SpeculationOptions("baseline"), SpeculationOptions("dspark", cap=7)) * 2:
            *_, last = demo_engine.generate(Request(ids, max_tokens=12, speculation=options))
            runs.append(last.tokens)
        assert runs[0] == runs[2] and runs[1] == runs[3]
        if runs[0] != runs[1]:
            at = next(i for i, (a, b) in enumerate(zip(runs[0], runs[1], strict=False)) if a != b)
            top = demo_engine.top_two([*ids, *runs[0][:at]])
            assert {runs[0][at], runs[1][at]} == {top.first, top.second} and top.gap < 1e-3
