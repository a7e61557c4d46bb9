"""The CI gate: noise passes, losses and divergences do not."""

import pytest
from gate import regressions, verdict_fault


def race(verdict="identical", ratio=1.4, interval=(1.3, 1.5)):
    arms = {"dspark": {"overall": ratio}, "baseline": {"overall": 1.0}}
    return {
        "summary": {
            "verdict": verdict,
            "ratio": arms,
            "ratio_interval": {"dspark": {"overall": interval and list(interval)}, "baseline": {"overall": None}},
        }
    }


@pytest.mark.parametrize(
    ("verdict", "passes"), [("identical", True), ("tied", True), ("diverged", False), (None, False)]
)
def test_only_equal_outputs_pass(verdict, passes):
    assert (verdict_fault(race(verdict)) is None) == passes


@pytest.mark.parametrize(
    ("interval", "fails"), [((1.3, 1.5), False), ((1.1, 1.34), False), ((1.1, 1.32), True), (None, False)]
)
def test_an_arm_fails_when_its_whole_interval_is_below(interval, fails):
    assert bool(regressions(race(), race(interval=interval), 0.95)) == fails
