"""The trial: chunks are taken where they are clearly faster and say the same."""

import mlx.core as mx
import pytest

from dspark.targets.attention import Pass
from dspark.tuning.timing import Stopwatch
from dspark.tuning.trial import agree, split_pays


class Scripted(Pass):
    """A pass that takes as long as told, on a clock of its own."""

    seconds = (1.0, 1.0)
    now = 0.0
    apart = 0.0

    def whole(self):
        Scripted.now += Scripted.seconds[0]
        return super().whole()

    def split(self):
        Scripted.now += Scripted.seconds[1]
        return super().split() + Scripted.apart


def tried(whole_s, split_s, apart=0.0, dtype=mx.float32):
    Scripted.seconds, Scripted.apart = (whole_s, split_s), apart
    rows = [mx.random.normal(shape, dtype) for shape in ((1, 16, 5, 8), (1, 1, 40, 8), (1, 1, 40, 8))]
    return split_pays(Scripted(*rows, None, 0.3, "causal"), Stopwatch(0.0, clock=lambda: Scripted.now))


@pytest.mark.parametrize(("whole_s", "split_s", "pays"), [(2, 1, True), (1, 1, False), (1, 0.95, False), (1, 2, False)])
def test_chunks_are_taken_where_they_are_clearly_faster(whole_s, split_s, pays):
    assert tried(whole_s, split_s) is pays


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_faster_but_something_else_is_not_taken(dtype):
    assert tried(2, 1, dtype=dtype) is True
    assert tried(2, 1, apart=0.2, dtype=dtype) is False


def test_outputs_that_are_no_numbers_do_not_agree():
    assert agree(mx.ones(3), mx.ones(3)) and not agree(mx.ones(3), mx.array([1.0, float("nan"), 1.0]))


def test_a_trial_that_fails_leaves_the_pass_whole():
    class Broken(Pass):
        def split(self):
            raise RuntimeError("no such kernel")

    one = mx.ones((1, 4, 9, 8))
    assert split_pays(Broken(one, one, one, None, 1.0, None)) is False


def test_what_is_measured_here_is_an_answer():
    rows = [mx.random.normal(shape) for shape in ((1, 16, 5, 32), (1, 1, 2000, 32), (1, 1, 2000, 32))]
    assert split_pays(Pass(*rows, None, 0.3, "causal")) in (True, False)
