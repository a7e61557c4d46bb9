"""OpenAI completions."""

import json

import pytest
from answers import CONTEXT, FIGURES, ending, render

from dspark.errors import BadRequest
from dspark.server.dialects import completions
from dspark.server.parts import Content, Reasoning, Scores, TokenScore


def parse(**fields):
    return completions.parse(json.dumps({"prompt": "hi", **fields}).encode())


def refused(**fields):
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    return caught.value.status, caught.value.param


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1, 2], [3]], ((1, 2), (3,))), ("", ("",))],
)
def test_e18_every_form_of_prompt(prompt, prompts):
    assert parse(prompt=prompt).prompts == prompts


@pytest.mark.parametrize("prompt", [[], 5, None, [True], [1.5], [-1], ["a", 1], [[1], "a"], {}])
def test_e18_what_is_no_prompt(prompt):
    assert refused(prompt=prompt) == (422, "prompt")


def test_e12_the_legacy_fields():
    assert parse(logprobs=5).sampling.top_logprobs == 5
    assert refused(logprobs=True) == (422, "logprobs")
    assert refused(logprobs=21) == (422, "logprobs")
    assert parse(echo=True).echo
    assert refused(echo=True, logprobs=1) == (400, "echo")
    assert refused(best_of=3) == (400, "best_of") and parse(best_of=3, n=3).n == 3
    assert refused(suffix="x") == (400, "suffix") and parse(suffix="").prompts == ("hi",)
    assert refused(prompt=["a"] * 100, n=100) == (400, "n")


def test_the_stream_says_what_the_whole_says():
    parts = [Content("hi"), Content(" wör"), Content("ld")]
    frames, whole = render(completions, parts, parse(echo=True, stream=True))
    chunks = [data for _, data in frames[:-1]]
    assert frames[-1] == [None, "[DONE]"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"] == "hi wörld"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop" == whole["choices"][0]["finish_reason"]
    assert chunks[-1]["x_mlx_dspark"] == whole["x_mlx_dspark"] == FIGURES
    assert {chunk["id"] for chunk in chunks} == {"cmpl-abc"}
    assert render(completions, [Reasoning("a"), Content("b")], parse())[1]["choices"][0]["text"] == "ab"


def test_answers_to_several_prompts_are_numbered_prompt_by_prompt():
    order = parse(prompt=["a", "b"], n=2)
    reply = completions.Reply(order, CONTEXT)
    for index in range(4):
        reply.feed(Content(str(index)), index)
        reply.finish(ending([]), index)
    whole = reply.whole()
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [(i, str(i)) for i in range(4)]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (24, 28)


def test_logprobs_in_parallel_lists_streamed_or_not():
    scores = [TokenScore(text, text.encode(), -0.5, (TokenScore("z", b"z", -1.0),)) for text in ("ab", "c", "d")]
    parts = [Scores(tuple(scores[:2])), Content("abc"), Scores((scores[2],)), Content("d")]
    frames, whole = render(completions, parts, parse(logprobs=1))
    told = whole["choices"][0]["logprobs"]
    assert told == {
        "tokens": ["ab", "c", "d"],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [{"z": -1.0}] * 3,
        "text_offset": [0, 2, 3],
    }
    for key, values in told.items():
        streamed = [v for _, data in frames[:-1] for v in (data["choices"][0]["logprobs"] or {}).get(key, [])]
        assert streamed == values


def test_keepalive_and_failure():
    reply = completions.Reply(parse(stream=True), CONTEXT)
    assert reply.keepalive()[1]["choices"][0]["text"] == ""
    [(_, failed), done] = reply.fail(RuntimeError("secret"))
    assert failed["error"]["type"] == "api_error" and done == (None, "[DONE]")
