"""From orders to prompts: templates of every temper, and what they take."""

import pytest
from chatting import CHATML, HERMES, STRICT, THINK, chat_tokenizer

from dspark.decoding.stopping import StopRule
from dspark.errors import BadRequest, PromptError
from dspark.server.conversation import Conversation, answer_tokens, nearest
from dspark.server.order import Call, Message, Order, Thinking, Tool, ToolChoice
from dspark.server.parts import Content, Reasoning

READ = Tool("Read", "reads", {"type": "object", "properties": {"path": {"type": "string"}}})
OPENS = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
SWITCH = OPENS.replace(
    "<think>\n{% endif %}", "{% if use_thinking is not defined or use_thinking %}<think>\n{% endif %}{% endif %}"
)
MISTRAL = (
    "{% set ns = namespace(index=0) %}{% for m in messages %}"
    "{% if not (m.role in ['tool', 'system'] or m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}"
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system') }}{% endif %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
    "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}#{{ c.id }}{% endfor %}"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.tool_call_id }}:{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}[{{ m.role }}]{{ m.content }}[/{{ m.role }}]{% endif %}{% endfor %}"
)
TEXT_ARGUMENTS = HERMES.replace("{{ c.function.arguments | tojson }}", "{{ '' + c.function.arguments }}")


def conversation(template=CHATML, *, defaults=None, **options):
    tokenizer = chat_tokenizer(template, **options)
    return Conversation(tokenizer, defaults) if defaults else Conversation(tokenizer)


def text(talk, *messages, **order):
    return talk.prompts(Order(messages=messages, **order))[0].text


def user(content):
    return Message("user", content)


def called(arguments='{"path": "a.txt"}', result="123", id_="toolu_1"):
    return Message("assistant", calls=(Call(id_, "Read", arguments),)), Message("tool", result, answers=id_)


def test_a_chat_is_what_the_template_makes_of_it():
    assert text(conversation(), Message("system", "be brief"), user("hi")) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_prompt_of_one_user_turn_is_the_engines_own():
    tokenizer = chat_tokenizer()
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    assert list(Conversation(tokenizer).prompts(Order(messages=(user("hi"),)))[0].ids) == list(ids)


@pytest.mark.real
def test_the_demo_models_prompt_is_the_engines_own(demo_engine):
    talk = Conversation(demo_engine.tokenizer)
    assert list(talk.prompts(Order(messages=(user("Why?"),)))[0].ids) == demo_engine.encode_chat("Why?")
    assert talk.notes and not talk.tools_native


TALKS = {
    "system anywhere": (user("alpha"), Message("assistant", "bravo"), Message("system", "sierra"), user("charlie")),
    "system last": (user("alpha"), Message("assistant", "bravo"), Message("system", "sierra")),
    "two systems": (Message("system", "sierra"), Message("system", "tango"), user("alpha")),
    "system only": (Message("system", "sierra"),),
    "tool before any assistant": (Message("tool", "romeo", answers="x"), user("alpha")),
    "assistant first": (Message("assistant", "bravo"), user("alpha")),
    "two users": (
        user("alpha"),
        user("bravo"),
        Message("assistant", "charlie"),
        Message("assistant", "delta"),
        user("echo"),
    ),
    "a tool's turn": (user("alpha"), *called(), user("bravo")),
    "a result for an unknown call": (
        user("alpha"),
        Message("assistant", "bravo"),
        Message("tool", "romeo", answers="no"),
        user("charlie"),
    ),
    "system between call and answer": (user("alpha"), *called(), Message("system", "sierra"), *called(id_="toolu_2")),
    "a call with words": (
        user("alpha"),
        Message("assistant", "whiskey", calls=(Call("c", "Read", "{}"),)),
        Message("tool", "romeo", answers="c"),
    ),
}
TEMPERS = {
    "chatml": (CHATML, {}),
    "hermes": (HERMES, {"family": "json_tools"}),
    "strict": (STRICT, {}),
    "mistral": (MISTRAL, {"family": "mistral"}),
    "arguments as text": (TEXT_ARGUMENTS, {"family": "json_tools"}),
    "none": (None, {}),
}


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("temper", TEMPERS)
def test_e7_f7_no_template_refuses_or_loses_a_turn(talk, temper):
    """E7, F7, F9, H10"""
    template, options = TEMPERS[temper]
    rendered = text(conversation(template, **options), *TALKS[talk], tools=(READ,))
    words = [message.content for message in TALKS[talk] if message.content]
    words += [call.name for message in TALKS[talk] for call in message.calls]
    if (temper, talk) == ("mistral", "a call with words"):
        words.remove("whiskey")  # this template drops what is said beside a call: its own rule
    assert [word for word in words if word not in rendered] == []


def test_f7_a_late_system_turn_joins_the_users_after_it():
    talk = conversation(HERMES, family="json_tools")
    rendered = text(
        talk, Message("system", "S"), user("A"), Message("assistant", "B"), Message("system", "T"), user("C")
    )
    assert "<|im_start|>user\nT\n\nC<|im_end|>" in rendered


def test_two_systems_become_one():
    rendered = text(conversation(HERMES), Message("system", "S"), Message("system", "T"), user("A"))
    assert "<|im_start|>system\nS\n\nT<|im_end|>" in rendered


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ('{"path": "a"}', '{"path": "a"}'),
        ("", "{}"),
        ("{}", "{}"),
        ("{broken", '{"raw": "{broken"}'),
        ("[1]", '{"raw": "[1]"}'),
    ],
)
@pytest.mark.parametrize("template", [HERMES, TEXT_ARGUMENTS])
def test_h10_past_arguments_in_the_form_the_template_needs(template, arguments, right):
    talk = conversation(template, family="json_tools")
    assert f'"arguments": {right}}}' in text(talk, user("A"), *called(arguments), tools=(READ,))


def test_ids_of_nine_letters_where_the_template_wants_them():
    rendered = text(conversation(MISTRAL, family="mistral"), user("A"), *called(), user("B"), tools=(READ,))
    given = rendered.split("#")[1][:9]
    assert f"[TOOL_RESULTS]{given}:123\n\nB[/TOOL_RESULTS]" in rendered


def test_tools_go_through_the_template_that_knows_them():
    talk = conversation(HERMES, family="json_tools")
    assert talk.tools_native and talk.notes == ()
    assert '<|im_start|>tools\n{"type": "function"' in text(talk, user("A"), tools=(READ,))


@pytest.mark.parametrize(
    ("template", "family"), [(CHATML, None), (HERMES, None), (CHATML, "json_tools"), (STRICT, None)]
)
def test_h15_a_model_that_knows_no_tools_is_told_of_them_in_words(template, family):
    talk = conversation(template, family=family)
    rendered = text(talk, Message("system", "S"), user("A"), tools=(READ,))
    assert "S\n\nYou may call these tools" in rendered and '"description": "reads"' in rendered
    assert talk.tool_format.start == "<tool_call>"
    assert "told of them in words" in talk.notes[0]


def test_f13_a_choice_narrows_what_the_model_is_told():
    talk = conversation(HERMES, family="json_tools")
    tools = (READ, Tool("Write"))
    assert "<|im_start|>tools" not in text(talk, user("A"), tools=tools, tool_choice=ToolChoice("none"))
    named = text(talk, user("A"), tools=tools, tool_choice=ToolChoice("required", "Write"))
    assert '"Write"' in named and '"Read"' not in named


def test_a_prompt_that_ends_in_a_thought_is_found_to():
    order = Order(messages=(user("hi"),))
    assert conversation(OPENS, tokens=THINK).prompts(order)[0].opens_thinking
    assert not conversation(HERMES, tokens=THINK).prompts(order)[0].opens_thinking
    quoting = Order(messages=(user("what is <think>"),))
    assert not conversation(HERMES, tokens=THINK).prompts(quoting)[0].opens_thinking


def test_i4_a_thought_that_the_template_always_opens_is_closed():
    talk = conversation(OPENS, tokens=THINK)
    [prompt] = talk.prompts(Order(messages=(user("hi"),), thinking=Thinking(enabled=False)))
    assert prompt.text.endswith("assistant\n<think>\n\n</think>\n\n") and not prompt.opens_thinking


@pytest.mark.parametrize("template", [HERMES, SWITCH])
def test_the_switch_for_thinking_is_found_whatever_its_name(template):
    talk = conversation(template, tokens=THINK)
    assert talk.template.thinks_unasked is True
    [off] = talk.prompts(Order(messages=(user("hi"),), thinking=Thinking(enabled=False)))
    [on] = talk.prompts(Order(messages=(user("hi"),), thinking=Thinking(enabled=True)))
    assert off.text != on.text and not off.opens_thinking


def test_i6_the_servers_default_holds_until_a_request_says_otherwise():
    talk = conversation(SWITCH, tokens=THINK, defaults=Thinking(enabled=False))
    assert not talk.prompts(Order(messages=(user("hi"),)))[0].opens_thinking
    assert talk.prompts(Order(messages=(user("hi"),), thinking=Thinking(enabled=True)))[0].opens_thinking


RAISES = (
    "{% if effort is defined and effort not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('effort') }}{% endif %}"
)
CHAIN = (
    "{% if reasoning_effort == 'low' %}L{% elif reasoning_effort == 'medium' %}M"
    "{% elif reasoning_effort == 'xhigh' %}X{% endif %}"
)
DEFAULTS = "{% if reasoning_effort == 'low' %}L{% elif reasoning_effort == 'high' %}H{% else %}M{% endif %}"
PRINTS = "Reasoning: {{ reasoning_effort }}\n"


@pytest.mark.parametrize(
    ("template", "name", "known"),
    [
        (RAISES + "{{ effort }}" + CHATML, "effort", ("low", "medium", "xhigh")),
        (CHAIN + CHATML, "reasoning_effort", ("low", "medium", "xhigh")),
        (DEFAULTS + CHATML, "reasoning_effort", ("low", "medium", "high")),
        (PRINTS + CHATML, "reasoning_effort", ("low", "medium", "high")),
        (
            PRINTS + "{% if reasoning_effort == 'max' %}!{% endif %}" + CHATML,
            "reasoning_effort",
            ("low", "medium", "high", "max"),
        ),
    ],
)
def test_what_efforts_a_template_knows(template, name, known):
    assert conversation(template).template.effort == (name, known)


def test_a_template_without_efforts_gets_none():
    talk = conversation(CHATML)
    assert talk.template.effort is None
    assert text(talk, user("hi"), thinking=Thinking(effort="high")) == text(talk, user("hi"))


@pytest.mark.parametrize(
    ("wanted", "given"),
    [("minimal", "low"), ("medium", "medium"), ("high", "medium"), ("xhigh", "xhigh"), ("max", "xhigh")],
)
def test_e9_the_nearest_effort_the_lesser_of_two(wanted, given):
    assert nearest(wanted, ("low", "medium", "xhigh")) == given
    letter = {"low": "L", "medium": "M", "xhigh": "X"}[given]
    assert text(conversation(CHAIN + CHATML), user("hi"), thinking=Thinking(effort=wanted)).startswith(letter)


def test_f6_thinking_switched_off_goes_before_any_effort():
    talk = conversation(CHAIN + HERMES, tokens=THINK)
    off = text(talk, user("hi"), thinking=Thinking(enabled=False, effort="xhigh"))
    assert not off.startswith("X") and off.endswith("</think>\n\n")


def test_what_else_is_said_goes_to_the_template():
    talk = conversation("{{ style }}" + CHATML)
    assert text(talk, user("hi"), template_kwargs={"style": "terse"}).startswith("terse")


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "messages", "add_generation_prompt", "tools"])
def test_what_is_not_the_templates_is_refused(name):
    with pytest.raises(BadRequest, match=f"cannot set {name}"):
        text(conversation(), user("hi"), template_kwargs={name: "x"})


def test_a_template_that_renders_nothing_is_an_error_that_says_so():
    with pytest.raises(PromptError, match="cannot render this conversation: never"):
        text(conversation("{{ raise_exception('never') }}"), user("hi"))


def test_nothing_to_answer_is_a_bad_request():
    with pytest.raises(BadRequest, match="no message"):
        conversation().prompts(Order())


def test_e18_raw_prompts_pass_no_template():
    talk = conversation()
    text_prompt, ids_prompt = talk.prompts(Order(prompts=("hi", (1, 2))))
    assert (talk.prompts(Order(prompts=("hi",)))[0].text, len(text_prompt.ids), ids_prompt.ids) == ("hi", 2, (1, 2))
    for empty in ("", ()):
        with pytest.raises(PromptError, match="empty"):
            talk.prompts(Order(prompts=(empty,)))


def test_nothing_in_the_answer_to_a_raw_prompt_is_markup():
    talk = conversation(HERMES, tokens=THINK, family="json_tools")
    order = Order(prompts=("x",))
    splitter = talk.splitter(order, talk.prompts(order)[0])
    assert splitter.feed("<think>a</think> <tool_call>") == [Content("<think>a</think> <tool_call>")]


def test_h1_a_family_that_invents_results_is_stopped_where_they_begin():
    tokens = ("<|tool_call>", "<tool_call|>", "<|tool_response>")
    talk = conversation(HERMES, tokens=tokens, family="gemma4")
    order = Order(messages=(user("hi"),), tools=(READ,), stop=("END",))
    [prompt] = talk.prompts(order)
    assert prompt.stop == ("END", "<|tool_response>")
    assert talk.prompts(Order(messages=(user("hi"),)))[0].stop == ()
    tokenizer = talk._tokenizer
    rule = StopRule(tokenizer, {}, prompt.stop, 99)
    told = '<|tool_call>call:Read{path:<|"|>a<|"|>}<tool_call|><|tool_response>invented'
    settled = rule.take(tokenizer.encode(told, add_special_tokens=False))
    splitter = talk.splitter(order, prompt)
    [call] = splitter.feed(settled.text) + splitter.finish(settled.reason)
    assert (call.name, call.arguments, splitter.reason) == ("Read", '{"path": "a"}', "tool_calls")


def test_i7_markers_that_are_special_tokens_survive_to_the_splitter():
    tokenizer = chat_tokenizer(OPENS)
    tokenizer._tokenizer.add_special_tokens({"additional_special_tokens": list(THINK)})
    talk = Conversation(type(tokenizer)(tokenizer._tokenizer, eos_token_ids=[tokenizer.eos_token_id]))
    order = Order(messages=(user("hi"),))
    [prompt] = talk.prompts(order)
    rule = StopRule(talk._tokenizer, {}, (), 99)
    settled = rule.take(talk._tokenizer.encode("plan</think>\n\nhi", add_special_tokens=False))
    splitter = talk.splitter(order, prompt)
    assert splitter.feed(settled.text) == [Reasoning("plan"), Content("hi")]


def test_e15_the_window_bounds_the_answer():
    assert answer_tokens(10, 100, None, 2048, 32768) == 90
    assert answer_tokens(10, 100, 5, 32768) == 5
    assert answer_tokens(99, 100, 5) == 1
    with pytest.raises(PromptError, match=r"^prompt is too long: 100 tokens > 99 maximum") as caught:
        answer_tokens(100, 100, 5)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


def test_f12_counting_counts_the_real_prompt():
    talk = conversation(HERMES, family="json_tools")
    order = Order(messages=(Message("system", "S"), user("hi")), tools=(READ,))
    assert talk.count_tokens(order) == len(talk.prompts(order)[0].ids)
    assert talk.count_tokens(order) > talk.count_tokens(Order(messages=order.messages))


class Listening:
    """A tokenizer that remembers how long the texts were that it was given."""

    def __init__(self, tokenizer):
        self.lengths = []
        self._tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode(self, text, **options):
        self.lengths.append(len(text))
        return self._tokenizer.encode(text, **options)


def test_what_is_much_too_long_is_counted_in_pieces_and_refused():
    """The tokens of a body of megabytes would take gigabytes, for nothing but a number in a message."""
    order = Order(messages=(user("word " * 100_000),))
    exact = conversation().count_tokens(order)
    tokenizer = Listening(chat_tokenizer(CHATML))
    talk = Conversation(tokenizer, window=100)
    with pytest.raises(PromptError, match=r"^prompt is too long: \d+ tokens > 99 maximum$") as refused:
        talk.prompts(order)
    assert refused.value.code == "context_length_exceeded"
    assert max(tokenizer.lengths) < 100_000
    assert talk.count_tokens(order) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("prompt", ["word " * 1000, (1,) * 1000])
def test_a_raw_prompt_that_is_much_too_long_is_refused_before_it_is_read(prompt):
    talk = Conversation(chat_tokenizer(CHATML), window=100)
    with pytest.raises(PromptError, match="prompt is too long"):
        talk.prompts(Order(prompts=(prompt,)))
