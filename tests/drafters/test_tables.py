"""Whose embedding and head a drafter uses, and at which scale."""

import math
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models import gemma2
from tiny import DEEPSPEC, dflash_config
from toys import tokenizer

from dspark.drafters.loading import _as_embedding, _as_linear
from dspark.drafters.packaging import translate
from dspark.drafters.tables import Tables
from dspark.targets.target import Target

CAP = 2.0
DSPARK, DFLASH = translate(DEEPSPEC), translate(dflash_config())


@pytest.fixture(scope="module")
def gemma():
    config = {
        "model_type": "gemma2",
        "hidden_size": 32,
        "num_hidden_layers": 6,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "vocab_size": 64,
        "num_key_value_heads": 2,
        "final_logit_softcapping": CAP,
    }
    mx.random.seed(2)
    return Target(gemma2.Model(gemma2.ModelArgs(**config)), tokenizer(), config, Path("gemma"))


def tables(config, target, embedding=None, head=None):
    return Tables(config, target, _as_embedding(embedding), _as_linear(head), mx.float32)


@pytest.fixture(scope="module")
def hidden():
    return mx.random.normal((3, 32)) * 4


def test_gemma_scales_its_embedding_outside_of_the_table(gemma):
    ids = mx.array([[5, 61]])
    raw = gemma.embedding(ids)
    for config in (DSPARK, DFLASH):
        assert mx.allclose(tables(config, gemma).embed(ids), raw * math.sqrt(32)).item()
    own = mx.random.normal((64, 32))
    assert mx.array_equal(tables(DSPARK, gemma, own).embed(ids), own[ids]).item()
    scaled = replace(DFLASH, embedding_scale=1.5)
    assert mx.allclose(tables(scaled, gemma).embed(ids), raw * 1.5).item()


def test_a_shared_head_is_the_raw_product_unless_the_drafter_imitates_the_target(gemma, hidden):
    """M4: a DSpark head was trained on the raw product, a DFlash head on the target's own output."""
    raw = hidden @ gemma.embedding.weight.T
    assert mx.abs(raw).max().item() > CAP / 2
    assert mx.allclose(tables(DSPARK, gemma).logits(hidden), raw, atol=1e-5).item()
    capped = mx.tanh(raw / CAP) * CAP
    assert mx.allclose(tables(DFLASH, gemma).logits(hidden), capped, atol=1e-5).item()


def test_the_drafters_own_scale_and_cap_come_in_this_order(gemma, hidden):
    head = mx.random.normal((64, 32))
    config = replace(DFLASH, output_scale=0.5, softcap=3.0)
    expected = mx.tanh(hidden @ head.T * 0.5 / 3.0) * 3.0
    assert mx.allclose(tables(config, gemma, head=head).logits(hidden), expected, atol=1e-5).item()
    # With a head of its own, the target's cap is none of its business.
    assert mx.allclose(tables(DFLASH, gemma, head=head).logits(hidden), hidden @ head.T, atol=1e-5).item()
