"""Finding the part of a prompt that is rendered the same next time, on templates that render the end otherwise."""

import pytest
from jinja2 import Environment

from dspark.prefix.boundaries import boundaries

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
OPENS_A_THOUGHT = PLAIN.replace("<assistant>{% endif %}", "<assistant><think>\n{% endif %}")
EMPTY_THOUGHT = PLAIN.replace("<assistant>{% endif %}", "<assistant><think>\n\n</think>\n\n{% endif %}")
# Thoughts stay as long as no user has spoken since, as in templates for agents.
STRIPS_HISTORY = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' and loop.index0 < ns.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}</{{ m.role }}>{% endfor %}<assistant><think>"
)
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a disk?"}]
ANSWER = {"role": "assistant", "content": "Round."}
NEXT = {"role": "user", "content": "And a ball?"}


def renderer(template):
    compiled = Environment(autoescape=False).from_string(template)
    return lambda turns: compiled.render(messages=turns, add_generation_prompt=True)


def encode(text):
    """Pieces of three letters, so that a boundary may fall inside of one."""
    return [hash(text[i : i + 3]) for i in range(0, len(text), 3)]


def shared(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("template", [PLAIN, OPENS_A_THOUGHT, EMPTY_THOUGHT, STRIPS_HISTORY])
def test_c2_the_newest_boundary_is_in_the_next_turns_prompt_whatever_the_template_does_to_the_tail(template):
    render = renderer(template)
    prompt, following = encode(render(TURNS)), encode(render([*TURNS, ANSWER, NEXT]))
    found = boundaries(TURNS, render, encode, prompt)
    real = shared(prompt, following)
    assert found and real - 2 <= found[-1] <= real
    session = encode(render([TURNS[0], NEXT]))
    assert 0 < found[0] <= shared(prompt, session), "another session starts behind the system prompt"


def test_c2_in_an_agents_loop_both_ways_to_go_on_have_a_boundary():
    """A user's turn makes the template forget the thoughts before it; a tool's result does not."""
    called = {"role": "assistant", "content": "<think>hm</think>call"}
    turns = [*TURNS, called, {"role": "tool", "content": "4711"}]
    render = renderer(STRIPS_HISTORY)
    prompt = encode(render(turns))
    found = boundaries(turns, render, encode, prompt)
    for following in ([called, turns[-1]], [ANSWER, NEXT]):
        real = shared(prompt, encode(render([*turns, *following])))
        assert any(real - 2 <= boundary <= real for boundary in found)


def test_a_template_that_refuses_what_is_tried_leaves_that_out():
    def render(turns):
        if len(turns) > 2:
            raise ValueError("one turn only")
        return renderer(PLAIN)(turns)

    assert len(boundaries(TURNS, render, encode, encode(render(TURNS)))) == 1
    assert boundaries([], lambda turns: 1 / 0, encode, []) == ()
