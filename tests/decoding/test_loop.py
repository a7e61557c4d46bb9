"""The decoding loop on a scripted target: what is emitted, and what is left in the caches, on every way out."""

import itertools

import mlx.core as mx
import pytest
from toys import EOS, JUNK, ToyDrafter, alternating, liar, only_at, oracle, scripted_target

from dspark.decoding.events import Finished, PrefillProgress, RoundCommitted, Text
from dspark.decoding.loop import Decoding
from dspark.decoding.request import Request
from dspark.errors import VerifierError
from dspark.prefix.cache import PrefixCache
from dspark.prefix.options import PrefixOptions
from dspark.tuning.pilot import FixedPilot, PlainPilot

DRAFTERS = {"oracle": oracle, "liar": liar, "alt1": alternating(1), "alt2": alternating(2)}
LONG = [3 + i % 20 for i in range(60)]


def start(prompt, script, *, rule=None, block=5, cap=None, lookup=False, window=512, **request):
    target = scripted_target(prompt, script, window)
    drafter = ToyDrafter([*prompt, *script], block, rule) if rule else None
    pilot = FixedPilot(cap or block, drafter=drafter is not None, lookup=lookup) if rule or lookup else PlainPilot()
    return Decoding(target, drafter, pilot, Request(prompt, **request), lookup=lookup), drafter


def finish(decoding):
    events = list(decoding.events())
    assert isinstance(events[-1], Finished)
    return events[-1], events


def assert_settled(decoding, drafter, expected_length):
    sequence = decoding.sequence
    assert [entry.offset for entry in sequence.cache.entries] == [expected_length] * 3
    assert sequence.record == sequence.tokens[:expected_length]
    held = sequence.cache.entries[0].keys[0, 0, :expected_length, 0].tolist() if expected_length else []
    assert [int(t) for t in held] == sequence.record
    if drafter is not None:
        assert drafter.contexts[-1].rows == sequence.record


@pytest.mark.parametrize("offset", range(6))
@pytest.mark.parametrize("rule", [None, oracle, alternating(2)])
def test_eos_inside_a_block_ends_the_answer_there(offset, rule):
    """A1, A2: nothing after it reaches text, counts or caches."""
    answer = LONG[:offset]
    decoding, drafter = start([1], [*answer, EOS, 13, 14, 15], rule=rule, max_tokens=50)
    last, events = finish(decoding)
    assert (last.reason, list(last.tokens)) == ("stop", answer)
    assert last.statistics.completion_tokens == offset
    assert [t for e in events if isinstance(e, RoundCommitted) for t in e.tokens] == answer
    assert_settled(decoding, drafter, 1 + offset)


def test_a_round_that_ends_in_eos_counts_what_it_settled():
    """B12: verified [d1, d2, EOS, d4, d5] contributes three tokens, not six."""
    decoding, _ = start([1], [10, 11, 12, EOS, 14, 15, 16], rule=oracle, max_tokens=50)
    statistics = finish(decoding)[0].statistics
    assert (statistics.rounds, statistics.emitted, statistics.accept_len) == (1, 3, 3.0)
    assert statistics.offered_at == statistics.accepted_at == (1, 1, 1)


@pytest.mark.parametrize("max_tokens", range(1, 13))
@pytest.mark.parametrize("rule", [None, oracle, liar, alternating(1)])
def test_the_budget_is_met_exactly_and_charged_once(max_tokens, rule):
    """A4, A5: as many tokens as asked for, as many as reported, one cache row short of the last."""
    decoding, drafter = start([1, 4], LONG, rule=rule, max_tokens=max_tokens)
    last, _ = finish(decoding)
    assert last.reason == "length"
    assert list(last.tokens) == LONG[:max_tokens]
    assert last.statistics.completion_tokens == max_tokens
    assert_settled(decoding, drafter, 2 + max_tokens - 1)


@pytest.mark.parametrize(
    ("run", "max_tokens", "stop", "visible", "reason"),
    [
        ([11, 12, EOS, 13, 14], 9, (), [11, 12], "stop"),
        ([11, 12, EOS, 13, 14], 2, (), [11, 12], "length"),
        ([11, 12, EOS, 13, 14], 3, (), [11, 12], "stop"),
        ([10, 11, 40, 20, 21, 22], 5, ("STOP",), [10, 11], "stop"),
        ([10, 11, 20, 21, 22, 40], 5, ("STOP",), [10, 11, 20, 21, 22], "length"),
        ([10, 11, 12, 13, 14, 15], 1, (), [10], "length"),
    ],
)
@pytest.mark.parametrize("rule", [None, oracle])
def test_finish_order(run, max_tokens, stop, visible, reason, rule):
    """X5, in plain and in speculative decoding."""
    decoding, drafter = start([1], [*run, 5, 5, 5], rule=rule, max_tokens=max_tokens, stop=stop)
    last, events = finish(decoding)
    assert (list(last.tokens), last.reason) == (visible, reason)
    assert last.text == decoding._target.tokenizer.decode(visible)
    assert "".join(e.text for e in events if isinstance(e, Text)) == last.text
    assert_settled(decoding, drafter, min(1 + len(visible), decoding.sequence.cache.length))


@pytest.mark.parametrize(("block", "rule"), list(itertools.product([1, 2, 4, 7], DRAFTERS)))
@pytest.mark.parametrize("prompt_length", [1, 2, 15, 16, 17])
def test_every_exit_leaves_the_caches_as_a_cold_run_would(block, rule, prompt_length):
    """X7 for the plain KV cache: ids, cache length, drafter context and the next turn, for every exit."""
    prompt = [1 + i % 7 for i in range(prompt_length)]
    for exit_ in ("eos", "stop", "budget", "cancel", "exception"):
        script = [*LONG[:9], EOS, 9, 9, 9, 9, 9, 9, 9, 9] if exit_ == "eos" else [*LONG[:9], 40, *LONG[10:]]
        seen = 0
        decoding, drafter = start(
            prompt,
            script,
            rule=DRAFTERS[rule],
            block=block,
            max_tokens=7 if exit_ == "budget" else 30,
            stop=("STOP",) if exit_ == "stop" else (),
            cancelled=lambda: exit_ == "cancel" and seen >= 5,  # noqa: B023
        )
        if exit_ == "exception":
            model = decoding._target.model
            model.fault = lambda calls: (_ for _ in ()).throw(RuntimeError("device lost")) if calls == 4 else None
        tokens = []
        try:
            for event in decoding.events():
                if isinstance(event, RoundCommitted):
                    tokens += event.tokens
                    seen = len(tokens)
                    assert drafter.contexts[-1].rows == [*prompt, *script][: len(drafter.contexts[-1].rows)]
        except RuntimeError:
            assert exit_ == "exception"
        assert tokens == script[: len(tokens)]
        expected = {"eos": script[:9], "stop": script[:9], "budget": script[:7]}.get(exit_)
        if expected is not None:
            assert decoding.sequence.stop.tokens == expected
        record = decoding.sequence.record
        assert_settled(decoding, drafter, len(record))
        # The next turn: the same cache, fed one more of the true tokens, still speaks the script.
        model = decoding._target.model
        model.fault = None
        follow = [*prompt, *script][len(record)]
        logits, _ = decoding._target.forward(mx.array([[follow]]), decoding.sequence.cache)
        assert int(logits[0, 0].argmax().item()) == [*prompt, *script][len(record) + 1]


@pytest.mark.parametrize(("accepted", "block"), [(a, 4) for a in range(5)])
def test_both_caches_hold_everything_but_the_anchor_after_each_round(accepted, block):
    """A16, A17: no row short after a full accept, none too many after a partial one."""
    decoding, drafter = start([1, 2], LONG, rule=alternating(accepted), block=block, max_tokens=40)
    emitted = 0
    for event in decoding.events():
        if isinstance(event, RoundCommitted):
            emitted += len(event.tokens)
            expected = 2 + emitted - 1
            assert decoding.sequence.cache.length == expected == event.context
            assert drafter.contexts[-1].rows == [1, 2, *LONG][:expected]


def test_acceptance_does_not_decay_over_a_long_answer():
    """A17: an oracle is accepted in full from the first round to the last."""
    script = [3 + i % 20 for i in range(2100)]
    decoding, _ = start([1], script, rule=oracle, block=7, max_tokens=2000, window=4096)
    rounds = [e for e in finish(decoding)[1] if isinstance(e, RoundCommitted)][1:]
    assert {r.accepted for r in rounds[:-1]} == {7}


def test_accepted_proposals_are_counted_up_to_the_first_wrong_one():
    """A11: matches at 0, 2 and 3 are one accepted token and the correction at position 1."""
    decoding, _ = start([1], LONG, rule=only_at(0, 2, 3), block=4, max_tokens=20)
    second = [e for e in finish(decoding)[1] if isinstance(e, RoundCommitted)][1]
    assert (second.accepted, second.tokens) == (1, tuple(LONG[1:3]))


def test_the_draft_shrinks_at_the_context_window():
    """A5: a prompt two short of the window gets two tokens, and no position reaches the window."""
    prompt = [1 + i % 7 for i in range(30)]
    for rule in (None, oracle):
        decoding, _ = start(prompt, LONG, rule=rule, block=7, window=32, max_tokens=50)
        last, _ = finish(decoding)
        assert (last.reason, list(last.tokens)) == ("length", LONG[:2])
        assert decoding.sequence.cache.length <= 31


def test_a_stop_string_that_began_in_an_earlier_round_takes_its_tokens_back():
    """The text ends before the stop string, and so do tokens and caches."""
    script = [10, 41, 42, 11, 12]  # k, "ST", "OP"
    for rule in (None, liar, oracle):
        decoding, drafter = start([1], [*script, *LONG], rule=rule, max_tokens=9, stop=("STOP",))
        last, events = finish(decoding)
        assert (last.text, list(last.tokens), last.reason) == ("k", [10], "stop")
        assert "".join(e.text for e in events if isinstance(e, Text)) == "k"
        assert_settled(decoding, drafter, 2)


def test_prefill_is_split_alike_in_every_mode():
    """A20: the last prompt token is fed alone, so the first token comes from the same kernel everywhere."""
    for length in (1, 2, 2048, 2049):
        prompt = [1 + i % 7 for i in range(length)]
        widths = {}
        for name, rule in (("plain", None), ("drafted", oracle)):
            decoding, _ = start(prompt, LONG, rule=rule, max_tokens=1, window=4096)
            seen, forward = [], decoding._target.forward
            decoding._target.forward = lambda t, c, f=forward, s=seen: (s.append(t.shape[1]), f(t, c))[1]
            finish(decoding)
            widths[name] = seen
        assert widths["plain"] == widths["drafted"]
        assert widths["plain"][-1] == 1 and sum(widths["plain"]) == length


def test_behind_what_is_reused_chunks_end_where_those_of_an_unknown_prompt_would():
    """So that a hit and a cold read come out of the same kernels as far as they can."""
    prompt = [1 + i % 7 for i in range(300)]
    target, prefix = scripted_target(prompt, LONG), PrefixCache(PrefixOptions(), mode="trim")

    def chunks(prompt):
        request = Request(prompt, max_tokens=1)
        decoding = Decoding(target, None, PlainPilot(), request, lookup=False, prefix=prefix, chunk=64)
        return [e.processed for e in finish(decoding)[1] if isinstance(e, PrefillProgress)]

    assert chunks(prompt[:100]) == [0, 64, 99, 100]
    assert chunks(prompt) == [100, 128, 192, 256, 299, 300]


def test_prefill_progress_ends_with_done_even_when_cancelled():
    decoding, _ = start([1 + i % 7 for i in range(5000)], LONG, max_tokens=3, window=8192, cancelled=lambda: True)
    progress = [e for e in finish(decoding)[1] if isinstance(e, PrefillProgress)]
    assert progress[-1].done and progress[0].processed == 0


def test_plain_decoding_feeds_ahead_but_keeps_nothing_of_it():
    """The step submitted before an end-of-sequence token was read must leave no row behind."""
    decoding, _ = start([1], [5, 6, EOS, 7, 8], max_tokens=9)
    finish(decoding)
    assert decoding._target.model.calls == 4  # one more than were needed
    assert_settled(decoding, None, 3)


def test_logits_that_are_not_finite_fail_the_request_before_anything_is_committed():
    decoding, drafter = start([1], LONG, rule=oracle, max_tokens=20)
    forward, calls = decoding._target.forward, []

    def poisoned(tokens, cache):
        logits, rows = forward(tokens, cache)
        calls.append(1)
        return (logits * float("nan") if len(calls) == 3 else logits), rows

    decoding._target.forward = poisoned
    emitted = []
    with pytest.raises(VerifierError, match="not finite"):
        for event in decoding.events():
            if isinstance(event, RoundCommitted):
                emitted += event.tokens
    assert emitted == LONG[: len(emitted)] and JUNK not in emitted
    assert_settled(decoding, drafter, len(decoding.sequence.record))


def test_closing_the_stream_restores_the_caches():
    decoding, drafter = start([1, 2, 3], LONG, rule=alternating(2), block=4, max_tokens=40)
    stream = decoding.events()
    for event in stream:
        if isinstance(event, RoundCommitted) and event.index == 3:
            stream.close()
            break
    assert_settled(decoding, drafter, decoding.sequence.length - 1)


def test_lookup_continues_a_repetition():
    period = [10, 11, 12, 13, 14]
    decoding, _ = start([1, *period, *period], [*period * 6, EOS], lookup=True, cap=32, max_tokens=40)
    last, events = finish(decoding)
    assert list(last.tokens) == period * 6
    assert last.statistics.lookup_rounds > 0 and last.statistics.rounds < 10
    assert max(e.drafted for e in events if isinstance(e, RoundCommitted)) <= 32


@pytest.mark.parametrize("rule", [None, oracle])
def test_a_choice_outside_the_vocabulary_fails_the_request_before_anything_is_committed(rule):
    """A32: a head wider than the vocabulary says a token that does not exist."""
    script = [*LONG[:6], 60, *LONG]
    decoding, drafter = start([1], script, rule=rule, max_tokens=20)
    decoding._target.config["vocab_size"] = 60
    emitted = []
    with pytest.raises(VerifierError):
        for event in decoding.events():
            if isinstance(event, RoundCommitted):
                emitted += event.tokens
    assert emitted == script[: len(emitted)] and 60 not in emitted
    assert_settled(decoding, drafter, len(decoding.sequence.record))


@pytest.mark.parametrize("rule", [None, oracle, alternating(1)])
def test_a_cancelled_answer_whose_end_completes_a_stop_string_leaves_no_row_of_it(rule):
    """Half a character becomes a replacement when the answer ends, which may be what the caller stops at."""
    seen = []
    script = [10, 11, 50, 51, 12, *LONG]
    decoding, drafter = start(
        [1], script, rule=rule, block=2, max_tokens=30, stop=("\ufffd",), cancelled=lambda: len(seen) >= 3
    )
    for event in decoding.events():
        if isinstance(event, RoundCommitted):
            seen += event.tokens
    assert (event.reason, event.tokens, event.text) == (
        "cancelled",
        (10, 11),
        decoding._target.tokenizer.decode([10, 11]),
    )
    assert_settled(decoding, drafter, 2)
