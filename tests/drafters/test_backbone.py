"""The backbone in every style against an independent one without caches, and its context in pieces."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from drafters.reference import block_rows
from tiny import DEEPSPEC, dflash_config, random_weights, write_llama

from dspark.drafters.backbone import sight
from dspark.drafters.config import ConvolutionConfig, LayerConfig, RopeConfig, SelectorConfig
from dspark.drafters.gemma import gemma_style, proportional
from dspark.drafters.loading import bind
from dspark.drafters.packaging import Checkpoint, translate
from dspark.targets.target import Target

PLAIN, SAME = translate(DEEPSPEC), translate(dflash_config())
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 16, "beta_fast": 4, "beta_slow": 1}


def windowed(config, **layer):
    return replace(config, layers=(LayerConfig(**layer), LayerConfig()))


STYLES = {
    "plain": PLAIN,
    "same layout": SAME,
    "window by row": windowed(PLAIN, window=7),
    "window by anchor": windowed(PLAIN, window=7, per_row=False),
    "window shorter than the block": windowed(PLAIN, window=2),
    "causal": windowed(PLAIN, causal=True),
    "causal window by row": windowed(SAME, window=7, causal=True),
    "causal window by anchor": windowed(PLAIN, window=7, causal=True, per_row=False),
    "sinks": replace(PLAIN, attention_sinks=True),
    "gated queries": replace(PLAIN, gated_query=True, rope=RopeConfig(10000.0, rotated=4)),
    "interleaved": replace(PLAIN, rope=RopeConfig(10000.0, traditional=True)),
    "yarn": replace(PLAIN, rope=RopeConfig(10000.0, scaling=YARN)),
    "linear": replace(PLAIN, rope=RopeConfig(10000.0, scaling={"rope_type": "linear", "factor": 4.0})),
    "gemma": replace(PLAIN, rope=proportional(1e4, 0.5), **gemma_style(32, key_is_value=True)),
    "gemma with values": replace(PLAIN, rope=proportional(1e4, 0.25), **gemma_style(32, key_is_value=False)),
    "convolved": replace(SAME, convolution=ConvolutionConfig(3, 8), selector=SelectorConfig(4, 6)),
    "other width of heads": replace(PLAIN, heads=6, head_dim=12),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return Target.load(write_llama(tmp_path_factory.mktemp("models") / "llama"))


@pytest.fixture(scope="module")
def rows(target):
    target.tap((0, 2, 4))
    _, rows = target.forward(mx.array([[3 + (7 * i) % 50 for i in range(40)]]), target.new_cache())
    return rows


def drafter_of(config, target, **options):
    weights = random_weights(config)
    return bind(Checkpoint(config, lambda: weights), target, **options), weights


def embedded(config, target, anchor):
    ids = mx.array([anchor] + [config.mask_id] * (config.rows - 1))
    return np.asarray(target.embedding(ids)) * (config.embedding_scale or 1.0)


def expected(config, target, weights, rows, anchor):
    return block_rows(config, weights, np.asarray(rows[0]), embedded(config, target, anchor))[-config.block :]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("length", [5, 40])
def test_rows_are_those_of_the_whole_sequence_without_caches(target, rows, style, length):
    """M5, M10: positions stay absolute whatever the window, and each flag does what it says."""
    config = STYLES[style]
    drafter, weights = drafter_of(config, target, window=0)
    context = drafter.new_context()
    context.append(rows[:, : length - 2])
    drafter.hidden(context, mx.array([4]))
    context.append(rows[:, length - 2 : length])
    ours = np.asarray(drafter.hidden(context, mx.array([9]))[0])
    assert ours == pytest.approx(expected(config, target, weights, rows[:, :length], 9), abs=2e-4)


def test_each_style_differs_from_the_plain_one(target, rows):
    """A flag that did nothing would pass its comparison with a reference that ignored it too."""
    seen = {}
    for style, config in STYLES.items():
        if config.rows != PLAIN.rows or config.heads != PLAIN.heads:
            continue
        drafter, _ = drafter_of(config, target, window=0)
        context = drafter.new_context()
        context.append(rows)
        seen[style] = np.asarray(drafter.hidden(context, mx.array([9]))[0])
    names = list(seen)
    for i, one in enumerate(names):
        assert all(np.abs(seen[one] - seen[other]).max() > 1e-3 for other in names[i + 1 :]), one


def test_norms_stored_as_offsets_are_read_whole(target, rows):
    config = replace(PLAIN, norm_offset=True)
    drafter, weights = drafter_of(config, target)
    context = drafter.new_context()
    context.append(rows)
    theirs = block_rows(config, weights, np.asarray(rows[0]), embedded(config, target, 9), norm_offset=1.0)
    assert np.asarray(drafter.hidden(context, mx.array([9]))[0]) == pytest.approx(theirs, abs=2e-4)


@pytest.mark.parametrize("window", [1, 8, 39, 40, 64])
def test_the_drafter_window_cuts_what_lies_further_back(target, rows, window):
    drafter, weights = drafter_of(PLAIN, target, window=window)
    context = drafter.new_context()
    context.append(rows)
    cut = replace(PLAIN, layers=(LayerConfig(window=window, per_row=False),) * 2)
    theirs = expected(cut, target, weights, rows, 9)
    assert np.asarray(drafter.hidden(context, mx.array([9]))[0]) == pytest.approx(theirs, abs=2e-4)


def test_a_head_with_its_own_window_keeps_it(target):
    layers = (LayerConfig(window=7, causal=True), LayerConfig())
    config = replace(PLAIN, layers=layers)

    def windows(window):
        return [layer.window for layer in drafter_of(config, target, window=window)[0].config.layers]

    assert windows("auto") == [7, None]
    assert windows(0) == [7, None]
    assert windows(3) == [3, 3]
    assert windows(20) == [7, 20]
    assert [layer.window for layer in drafter_of(PLAIN, target)[0].config.layers] == [4096, 4096]


@pytest.mark.parametrize("causal", [False, True])
def test_only_a_causal_block_is_computed_no_further_than_asked(target, rows, causal):
    """M11: cap 2 of 15. Cutting a bidirectional block would change the slots that remain."""
    config = replace(PLAIN, block=15, layers=(LayerConfig(causal=causal),) * 2)
    drafter, _ = drafter_of(config, target)

    def context():
        held = drafter.new_context()
        held.append(rows)
        return held

    whole, part = drafter.hidden(context(), mx.array([9])), drafter.hidden(context(), mx.array([9]), 2)
    assert part.shape[1] == (2 if causal else 15)
    assert mx.allclose(part[:, :2], whole[:, :2], atol=1e-4).item()
    draft = drafter.draft(context(), mx.array([9]), 15).tokens.tolist()
    assert drafter.draft(context(), mx.array([9]), 2).tokens.tolist() == draft[:2]


def test_no_mask_is_built_where_nothing_is_hidden():
    assert sight(LayerConfig(), 40, 5) == (0, None)
    assert sight(LayerConfig(causal=True), 40, 5) == (0, "causal")
    assert sight(LayerConfig(window=8, per_row=False), 40, 5) == (32, None)
    assert sight(LayerConfig(window=64), 40, 5) == (0, None)
    start, mask = sight(LayerConfig(window=8), 40, 5)
    assert (start, mask.shape) == (33, (5, 12))


@pytest.mark.parametrize("style", STYLES)
def test_half_precision_stays_half_precision(tmp_path_factory, target, rows, style):
    """One factor in float32 would double the cost of every product behind it."""
    half = Target.load(target.path)
    half.model.set_dtype(mx.bfloat16)
    config = replace(STYLES[style], softcap=3.0, output_scale=0.5, embedding_scale=1.5)
    drafter, _ = drafter_of(config, half)
    whole, _ = drafter_of(config, target)
    contexts = drafter.new_context(), whole.new_context()
    for context, dtype in zip(contexts, (mx.bfloat16, mx.float32), strict=True):
        context.append(rows[:, :10].astype(dtype))
    hidden = drafter.hidden(contexts[0], mx.array([9]))
    steps = drafter.steps(hidden[0], mx.array([9]))
    assert {hidden.dtype, steps.logits.dtype, contexts[0].arrays[0].dtype} == {mx.bfloat16}
    assert mx.abs(hidden.astype(mx.float32) - whole.hidden(contexts[1], mx.array([9]))).mean().item() < 0.1
