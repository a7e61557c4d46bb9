"""The closed form behind the coupling benchmark, against draws by the product's own rule."""

import math

import mlx.core as mx
import numpy as np
import pytest
from coupling import chances, coupled_agreement, survival

from dspark.decoding.request import Sampling
from dspark.decoding.sampling import Chooser

P = np.array([0.5, 0.3, 0.15, 0.05])
Q = np.array([0.2, 0.3, 0.1, 0.4])
DRAWS = 20_000


def test_agreement_is_what_draws_with_the_same_noise_show():
    chooser = Chooser(Sampling(temperature=1.0, seed=5), len(P))
    noise = chooser.noise(0, DRAWS)
    ours, theirs = (np.array(chooser.choose(mx.log(mx.array(law))[None], noise).tolist()) for law in (P, Q))
    for token, chance in enumerate(coupled_agreement(P, Q)):
        error = math.sqrt(chance * (1 - chance) / DRAWS)
        assert np.mean((ours == token) & (theirs == token)) == pytest.approx(chance, abs=4.5 * error)


def test_a_token_outside_of_a_law_is_never_agreed_on():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.6, 0.4])
    assert coupled_agreement(p, q).tolist() == pytest.approx([0.0, 1 / (1 / 0.5 + 0.4 / 0.6), 0.0])


def test_equal_laws_always_agree_and_the_residual_rule_is_never_worse():
    assert coupled_agreement(P, P).sum() == pytest.approx(1.0)
    (coupled, _), (sampled, _), (greedy, goes_on) = chances(P, Q, 3)
    distance = 1 - sampled
    assert (1 - distance) / (1 + distance) <= coupled < sampled == pytest.approx(0.65)
    assert (greedy, goes_on) == (0.05, 1.0)


def test_a_place_is_tested_when_all_before_it_were_accepted():
    assert survival([[(0.5, 0.25)], [(0.8, 1.0)], [(1.0, 0.0)]]) == [[(1.0, 0.5), (0.25, 0.2), (0.25, 0.25)]]
