"""A whole profile of a simulated machine."""

import random

from simulated import answer, machine, rates

from dspark.tuning.acceptance import prior_of
from dspark.tuning.curves import Curves, Level, Prefill
from dspark.tuning.decision import Evidence, decide
from dspark.tuning.key import Key
from dspark.tuning.profile import Measured, Profile, acceptance, curve_table, derived, profile_key
from dspark.tuning.timing import Timing

BLOCK = 7
KEY = Key(
    *("Apple M4 Pro", 20, 14, 48, "gpu", None, "0.32.4", "0.32.2"),
    target="aa" * 8,
    drafter="bb" * 8,
    switches=(("drafter_bits", "auto"), ("kv_bits", "0")),
)


def made(key: Key = KEY, seed: int = 0, **measured) -> Profile:
    """A profile of a simulated machine."""
    draw = random.Random(seed)
    true, _ = machine(draw, BLOCK)
    traces = [answer(draw, rates(draw, BLOCK), 80, klass) for klass in ("chat", "code")]

    def timings(points):
        return {place: Timing(ms, 0.01, 9) for place, ms in points}

    levels = (
        Level(64, timings(true.verify), timings(true.draft)),
        Level(4096, {1: Timing(99.0, 0.02, 5), 8: Timing(200.0, 0.02, 5)}, {7: Timing(9.0, 0.1, 5)}),
    )
    curves = Curves(
        levels, Timing(true.verify_ms(1) * 0.95, 0.01, 9), (Prefill(512, 1024, 800.0),), 0.003, 51200.0, 0.01
    )
    decision = decide(Evidence(curves.costs("test"), traces, BLOCK, lookup=False), (4096,))
    about = {"model": "org/Model-4B", "drafter": "org/head", "dtype": "4 bits", "date": "2026-11-30T12:00:00+00:00"}
    return Profile(
        key=profile_key(key),
        measured=Measured(**{**about, "seconds": 50.0, **measured}),
        curves=curve_table(curves),
        acceptance=acceptance(prior_of(traces, BLOCK)),
        derived=derived(decision, 4, 512),
    )
