"""Over HTTP, too, speculation changes nothing: ids of plain and speculative answers, in every dialect."""

import os

import pytest
from live import GENERATION, body_for, served

from dspark.decoding.verdict import Answer, compare
from dspark.server.telemetry import Watched

THINGS = ("a lake", "two birds", "rust", "the moon", "tea", "a proof", "snow", "a queue")
VERBS = ("Name", "Draw", "Sell", "Praise", "Explain")
FULL = bool(os.environ.get("MLX_DSPARK_FULL_MATRIX"))
ASKED = [f"{verb} {thing}." for verb in (VERBS if FULL else VERBS[:2]) for thing in THINGS]
PROMPTS = ["Say ab ab ab ab ab", "Count 1 2 3 4 5", "xyzzy", "Repeat: the the the the", "é€ 1.5e3"]
FORMS = [(path, stream) for path in GENERATION for stream in (False, True)]


@pytest.fixture(scope="module")
def heard():
    """The ids of each answer that ends, as the decoder told them."""
    ids = []
    finish = Watched.finish

    def hear(watch, finished):
        ids.append((finished.tokens, finished.reason == "stop"))
        finish(watch, finished)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watched, "finish", hear)
        yield ids


def answered(heard, texts, tokens, **flags):
    """The ids of every prompt in every form, by (prompt, path, streamed)."""
    found = {}
    with served(**flags) as live:
        for prompt in texts:
            for path, stream in FORMS:
                heard.clear()
                body = body_for(path, prompt, max_tokens=tokens, stream=stream)
                if stream:
                    live.stream(path, body)
                else:
                    live.post(path, body)
                ((found[prompt, path, stream]),) = heard
    return found


def test_ids_over_http_are_those_of_plain_decoding(pair, own_home, heard):
    """Acceptance 4, on a tiny pair: each prompt in every form; with `MLX_DSPARK_FULL_MATRIX=1` 40 more of them."""
    texts = [*PROMPTS, *(ASKED if FULL else [])]
    plain = answered(heard, texts, 24, model=pair[0], drafter="none", mode="baseline")
    spec = answered(heard, texts, 24, model=pair[0], drafter=pair[1], mode="dspark", max_draft=4, lookup_drafts=True)
    assert spec == plain and len(plain) == len(texts) * len(FORMS)
    for prompt in texts:
        chat = {ids for (said, path, _), ids in plain.items() if said == prompt and path != GENERATION[1]}
        assert len(chat) == 1, "one conversation has one answer, whatever the dialect"


@pytest.mark.real
def test_ids_over_http_of_the_demo_pair(demo_engine, heard):
    """Acceptance 4: each dialect in turn, streamed and not, twice; a difference must be a tie of the target's.

    `MLX_DSPARK_FULL_MATRIX=1` asks all 40 prompts.
    """

    def answers(**more):
        found = []
        with served(model="demo", precision="fp32", profile="none", warmup=False, **more) as live:
            for at, text in enumerate(ASKED):
                path, stream = FORMS[at % len(FORMS)]
                heard.clear()
                body = body_for(path, text, max_tokens=6, stream=stream)
                live.stream(path, body) if stream else live.post(path, body)
                found.append(Answer(heard[0][0], ended=heard[0][1]))
        return found

    plain, spec = answers(mode="baseline", drafter="none"), answers(mode="dspark", max_draft=4)
    for at, text in enumerate(ASKED):
        raw = FORMS[at % len(FORMS)][0] == GENERATION[1]
        ids = demo_engine.tokenizer.encode(text) if raw else demo_engine.encode_chat(text)
        verdict = compare(
            plain[at],
            spec[at],
            dtype=demo_engine.loaded.dtype,
            eos=demo_engine.loaded.eos,
            top_two=lambda tokens, ids=ids: demo_engine.top_two([*ids, *tokens]),
        )
        assert verdict.outcome in ("identical", "tied"), (text, verdict)
