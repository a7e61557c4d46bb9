"""Over HTTP, too, speculation changes nothing: ids of plain and speculative answers, in every dialect."""

import pytest
from live import GENERATION, body_for, served

from dspark.decoding.verdict import Answer, compare
from dspark.racing import prompts
from dspark.server.telemetry import Watched

PROMPTS = ["Say ab ab ab ab ab", "Count 1 2 3 4 5", "xyzzy", "Repeat: the the the the"]
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
    """Acceptance 4, on a tiny pair."""
    plain = answered(heard, PROMPTS, 48, model=pair[0], drafter="none", mode="baseline")
    spec = answered(heard, PROMPTS, 48, model=pair[0], drafter=pair[1], mode="dspark", max_draft=4, lookup_drafts=True)
    assert spec == plain and len(plain) == len(PROMPTS) * 8
    for prompt in PROMPTS:
        chat = {ids for (said, path, _), ids in plain.items() if said == prompt and path != GENERATION[1]}
        assert len(chat) == 1, "one conversation has one answer, whatever the dialect"


@pytest.mark.real
def test_ids_over_http_of_the_demo_pair(demo_engine, heard):
    """Acceptance 4: 40 prompts, each dialect in turn, streamed and not; a difference must be a tie of the target's."""
    texts = [prompt.text for prompt in prompts.builtin()]
    asked = [f"{text} ({n})" if n else text for n in range(40 // len(texts) + 1) for text in texts][:40]

    def answers(**more):
        found = []
        with served(model="demo", precision="fp32", profile="none", warmup=False, **more) as live:
            for at, text in enumerate(asked):
                path, stream = FORMS[at % len(FORMS)]
                heard.clear()
                body = body_for(path, text, max_tokens=12, stream=stream)
                live.stream(path, body) if stream else live.post(path, body)
                found.append(Answer(heard[0][0], ended=heard[0][1]))
        return found

    plain, spec = answers(mode="baseline", drafter="none"), answers(mode="dspark", max_draft=4)
    for at, text in enumerate(asked):
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
