"""What is kept, as clients meet it: many at once, and one that changes a line of its own every time."""

from itertools import combinations

import pytest
from server.live import GENERATION, body_for, in_threads, served, write_target

_, COMPLETIONS, MESSAGES, _ = GENERATION
SYSTEM = "You are one of eight. " * 30


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLX_DSPARK_HOME", str(tmp_path_factory.mktemp("home")))
        yield write_target(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def live(model):
    with served(model=model, drafter="none", mode="lookup", max_draft=3, warmup=False, prefix_cache_slots=4) as running:
        yield running


def ask(live, number, rounds=1):
    """Of each answer how likely its tokens were, which no two prompts share, and what of its prompt was not read."""
    body = {"model": "m", "prompt": f"{SYSTEM}{number} MARKER {number}", "max_tokens": 4, "logprobs": 1}
    answers = [live.post(COMPLETIONS, body) for _ in range(rounds)]
    return [
        (one["choices"][0]["logprobs"]["token_logprobs"], one["usage"]["prompt_tokens_details"]["cached_tokens"])
        for one in answers
    ]


def test_c14_eight_at_once_on_one_system_prompt_each_hear_their_own(model, live):
    """Fewer slots than conversations, so that they are handed out, forked and given up all the time."""
    with served(model=model, drafter="none", mode="baseline", warmup=False, prefix_cache=False) as cold:
        alone = [ask(cold, number)[0] for number in range(8)]
    assert {cached for _, cached in alone} == {0}
    for one, other in combinations([marker for marker, _ in alone], 2):
        assert one != pytest.approx(other, abs=5e-4)
    found = in_threads(*(lambda number=number: ask(live, number, rounds=3) for number in range(8)))
    for (marker, _), answers in zip(alone, found, strict=True):
        assert [said for said, _ in answers] == [pytest.approx(marker, abs=5e-5)] * 3
    cached = [cached for answers in found for _, cached in answers]
    assert sum(one >= len(SYSTEM) for one in cached) >= 23, "the first alone read the system prompt"


def test_c3_another_attribution_line_is_no_other_conversation(live):
    def read_again(cch):
        line = f"x-anthropic-billing-header: cc_version=2.1.1; cc_entrypoint=cli; cch={cch};"
        system = [{"type": "text", "text": line}, {"type": "text", "text": "You are a coding agent. " * 20}]
        used = live.post(MESSAGES, body_for(MESSAGES, "hello", system=system, max_tokens=2))["usage"]
        return used["cache_read_input_tokens"], used["input_tokens"]

    assert read_again("aaaa1")[0] < 100
    again, new = read_again("bbbb2")
    assert again > 480 and new == 1
