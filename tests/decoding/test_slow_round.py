"""B9: a kernel that is fast for a while and then stalls is told of."""

import logging
import time

import pytest
from toys import scripted_target

from dspark.decoding.loop import Decoding
from dspark.decoding.request import Request
from dspark.decoding.slow import SLOW_ROUND_VARIABLE
from dspark.tuning.pilot import PlainPilot

PROMPT, SCRIPT = [3, 4, 5], list(range(6, 30))


def rounds(caplog, stall_s=0.0):
    """Decode; the target's 12th forward stalls."""
    target = scripted_target(PROMPT, SCRIPT)
    forward, calls = target.forward, []

    def stalling(tokens, cache):
        calls.append(1)
        if len(calls) == 12:
            time.sleep(stall_s)
        return forward(tokens, cache)

    target.forward = stalling
    caplog.set_level(logging.WARNING, "dspark.decoding")
    *_, last = Decoding(target, None, PlainPilot(), Request(PROMPT, max_tokens=20), lookup=False).events()
    assert list(last.tokens) == SCRIPT[:20]
    return [record.getMessage() for record in caplog.records if "slow round" in record.getMessage()]


def test_b9_the_round_that_stalls_is_logged_once(caplog, monkeypatch):
    monkeypatch.setenv(SLOW_ROUND_VARIABLE, "0.25")
    told = rounds(caplog, stall_s=0.4)
    assert len(told) == 1 and "behind" in told[0]


def test_b9_by_default_ten_seconds_are_slow(caplog, monkeypatch):
    monkeypatch.delenv(SLOW_ROUND_VARIABLE, raising=False)
    assert rounds(caplog, stall_s=0.3) == []


@pytest.mark.parametrize("given", ["soon", ""])
def test_a_limit_that_is_no_number_leaves_the_default(caplog, monkeypatch, given):
    monkeypatch.setenv(SLOW_ROUND_VARIABLE, given)
    assert rounds(caplog) == []
    assert ("is not a number of seconds" in caplog.text) == bool(given)
