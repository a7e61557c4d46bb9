"""Drafter folders to bound drafters: the same head in every packaging, and strict about tensors."""

import mlx.core as mx
import pytest
from tiny import DEEPSPEC, head_weights, random_weights, speculators_config, write_head, write_llama

from dspark.drafters.loading import load_drafter
from dspark.drafters.packaging import translate
from dspark.errors import CheckpointError, DrafterFormatError, PairingError
from dspark.targets.target import Target


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return Target.load(write_llama(tmp_path_factory.mktemp("models") / "llama"))


def context_of(drafter, target, tokens):
    target.tap(drafter.taps)
    _, rows = target.forward(mx.array([tokens]), target.new_cache())
    context = drafter.new_context()
    context.append(rows)
    return context


def draft(drafter, target, tokens, anchor, cap=5):
    context = context_of(drafter, target, tokens)
    proposed = drafter.draft(context, mx.array([anchor]), cap)
    return proposed.tokens.tolist(), proposed.confidence.tolist()


def test_one_head_in_two_packagings_drafts_alike(target, tmp_path):
    deepspec = load_drafter(write_head(tmp_path / "a"), target)
    speculators = load_drafter(write_head(tmp_path / "b", speculators_config()), target)
    tokens = [5, 9, 33, 7, 40, 12]
    assert draft(deepspec, target, tokens, 11) == draft(speculators, target, tokens, 11)


def test_own_tables_are_used_and_shared_ones_bound(target, tmp_path):
    shared = load_drafter(write_head(tmp_path / "a"), target)
    tables = {"embed_tokens.weight": target.embedding.weight, "lm_head.weight": target.embedding.weight}
    own = load_drafter(write_head(tmp_path / "b", weights={**head_weights(), **tables}), target)
    assert draft(shared, target, [5, 6, 7], 8) == draft(own, target, [5, 6, 7], 8)
    assert own.parameter_bytes - shared.parameter_bytes == 2 * 64 * 32 * 4
    other = {"lm_head.weight": mx.roll(target.embedding.weight, 7, axis=0)}
    rolled = load_drafter(write_head(tmp_path / "c", weights={**head_weights(), **other}), target)
    assert draft(shared, target, [5, 6, 7], 8) != draft(rolled, target, [5, 6, 7], 8)


def test_a_reduced_vocabulary_is_mapped_back_by_offsets(target, tmp_path):
    """d2t holds offsets: target id = draft id + offset. A reduced head equals a full one whose other rows never win."""
    kept = list(range(3, 64, 3))
    weights = head_weights()
    w2, head = weights["markov_head.markov_w2.weight"], target.embedding.weight
    rows = mx.array(kept)
    reduced = {
        **weights,
        "markov_head.markov_w2.weight": w2[rows],
        "lm_head.weight": head[rows],
        "d2t": rows.astype(mx.int64) - mx.arange(len(kept)),
        "t2d": mx.array([i in kept for i in range(64)]),
    }
    drafter = load_drafter(write_head(tmp_path / "r", speculators_config(len(kept)), reduced), target)
    tokens, _ = draft(drafter, target, [5, 6, 7], 8)
    assert set(tokens) <= set(kept)
    # By hand, step by step over the full vocabulary with the other rows masked out.
    full = load_drafter(write_head(tmp_path / "f"), target)
    context = context_of(full, target, [5, 6, 7])
    hidden = full.hidden(context, mx.array([8]))[0]
    masked = mx.array([0.0 if i in kept else -1e9 for i in range(64)])
    previous, expected = 8, []
    for row in hidden:
        scores = row @ head.T + w2 @ weights["markov_head.markov_w1.weight"][previous] + masked
        previous = int(mx.argmax(scores).item())
        expected.append(previous)
    assert tokens == expected


def test_the_cap_cuts_the_draft_and_changes_nothing_before(target, tmp_path):
    drafter = load_drafter(write_head(tmp_path / "a"), target)
    whole, confidence = draft(drafter, target, [5, 6, 7], 8)
    for cap in range(1, 8):
        tokens, shorter = draft(drafter, target, [5, 6, 7], 8, cap)
        assert tokens == whole[:cap] and shorter == pytest.approx(confidence[: len(shorter)])


def test_context_in_pieces_is_context_at_once(target, tmp_path):
    """The training layout equals the incremental one, across the point where pending rows are absorbed."""
    drafter = load_drafter(write_head(tmp_path / "a"), target)
    tokens = [3 + (7 * i) % 50 for i in range(150)]
    target.tap(drafter.taps)
    _, rows = target.forward(mx.array([tokens]), target.new_cache())
    whole, pieces = drafter.new_context(), drafter.new_context()
    whole.append(rows)
    at = 0
    for size in (1, 3, 60, 1, 1, 40, 2, 42):
        pieces.append(rows[:, at : at + size])
        at += size
        if size == 40:
            drafter.draft(pieces, mx.array([4]), 5)
    assert at == 150 and whole.length == pieces.length == 150
    a, b = drafter.hidden(whole, mx.array([9])), drafter.hidden(pieces, mx.array([9]))
    assert mx.allclose(a, b, atol=1e-4).item()


def test_truncation_forgets_projected_and_pending_rows(target, tmp_path):
    drafter = load_drafter(write_head(tmp_path / "a"), target)
    target.tap(drafter.taps)
    _, rows = target.forward(mx.array([[3 + i for i in range(20)]]), target.new_cache())
    for length in (0, 3, 10, 14, 20):
        context = drafter.new_context()
        context.append(rows[:, :10])
        drafter.draft(context, mx.array([4]), 5)
        context.append(rows[:, 10:15])
        context.append(rows[:, 15:])
        context.truncate(length)
        assert context.length == length
        clean = drafter.new_context()
        if length:
            clean.append(rows[:, :length])
        a, b = drafter.hidden(context, mx.array([9])), drafter.hidden(clean, mx.array([9]))
        assert mx.allclose(a, b, atol=1e-4).item()


def test_quantized_tensors_are_unpacked(target, tmp_path):
    weights = head_weights()
    fc = mx.random.normal((32, 96))
    packed, scales, biases = mx.quantize(fc, group_size=32, bits=8)
    plain = load_drafter(
        write_head(tmp_path / "p", weights={**weights, "fc.weight": mx.dequantize(packed, scales, biases, 32, 8)}),
        target,
    )
    quantized = {**weights, "fc.weight": packed, "fc.scales": scales, "fc.biases": biases}
    config = {**DEEPSPEC, "quantization": {"group_size": 32, "bits": 8}}
    stored = load_drafter(write_head(tmp_path / "q", config, quantized), target)
    assert draft(plain, target, [5, 6, 7], 8) == draft(stored, target, [5, 6, 7], 8)
    with pytest.raises(DrafterFormatError, match="quantization"):
        load_drafter(write_head(tmp_path / "n", DEEPSPEC, quantized), target)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"fc.weight": None}, "fc.weight"),
        ({"fc.weight": mx.zeros((32, 64))}, "fc.weight"),
        ({"layers.2.self_attn.q_norm.weight": mx.zeros((8,))}, "layers.2"),
        ({"lm_head.weight": mx.zeros((60, 32))}, "lm_head.weight"),
    ],
)
def test_tensors_that_do_not_match_the_config_are_named(target, tmp_path, change, named):
    weights = {name: value for name, value in {**head_weights(), **change}.items() if value is not None}
    with pytest.raises(DrafterFormatError, match=named):
        load_drafter(write_head(tmp_path / "x", weights=weights), target)


def test_a_reduced_vocabulary_needs_its_map_and_its_head(target, tmp_path):
    base = {**head_weights(draft_vocabulary=20), "lm_head.weight": mx.zeros((20, 32)), "d2t": mx.zeros((20,), mx.int64)}
    for missing in ("d2t", "lm_head.weight"):
        weights = {name: value for name, value in base.items() if name != missing}
        with pytest.raises(DrafterFormatError, match=missing.split(".")[0]):
            load_drafter(write_head(tmp_path / missing, speculators_config(20), weights), target)
    with pytest.raises(PairingError, match="d2t"):
        load_drafter(write_head(tmp_path / "out", speculators_config(20), {**base, "d2t": base["d2t"] + 60}), target)


def test_a_truncated_file_says_what_to_do(target, tmp_path):
    folder = write_head(tmp_path / "t")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="fetch"):
        load_drafter(folder, target)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="safetensors"):
        load_drafter(folder, target)


def test_bits_quantize_the_projections_and_nothing_else(target, tmp_path):
    tables = {"embed_tokens.weight": mx.random.normal((64, 32)), "lm_head.weight": mx.random.normal((64, 32))}
    folder = write_head(tmp_path / "a", weights={**head_weights(), **tables})
    whole, packed = load_drafter(folder, target, bits=16), load_drafter(folder, target, bits=8)
    small = load_drafter(folder, target, bits=4)
    assert whole.parameter_bytes > packed.parameter_bytes > small.parameter_bytes
    kinds = {path: type(module).__name__ for path, module in packed._model.named_modules()}
    quantized = {path for path, kind in kinds.items() if kind == "QuantizedLinear"}
    projections = {path for path in kinds if path.endswith("_proj") and path.startswith("layers.")}
    # The Markov output table has rows of 4 numbers here, too few for a group, and down_proj has 48.
    assert quantized == {path for path in projections if not path.endswith("down_proj")}
    assert kinds["fc"] == "Linear" and {kind for path, kind in kinds.items() if "norm" in path} == {"RMSNorm"}
    assert [type(table).__name__ for table in packed._tables.own] == ["QuantizedEmbedding", "QuantizedLinear"]
    tokens = [5, 9, 33, 7]
    rows = [drafter.hidden(context_of(drafter, target, tokens), mx.array([11])) for drafter in (whole, packed, small)]
    distance = [mx.abs(other - rows[0]).max().item() for other in rows[1:]]
    assert 0 < distance[0] < 0.2 and distance[0] < distance[1]


def test_nothing_is_quantized_on_a_cpu_unless_asked(target, tmp_path):
    if mx.default_device().type == mx.DeviceType.gpu:
        pytest.skip("this machine has a GPU, where 4 bits are the default")
    folder = write_head(tmp_path / "a")
    assert load_drafter(folder, target).parameter_bytes == load_drafter(folder, target, bits=16).parameter_bytes


def test_tensors_may_be_quantized_each_its_own_way(target, tmp_path):
    weights, stored, plain = head_weights(), {}, {}
    for name, bits in (("fc", 8), ("layers.0.self_attn.q_proj", 4)):
        packed, scales, biases = mx.quantize(weights[f"{name}.weight"], group_size=32, bits=bits)
        stored |= {f"{name}.weight": packed, f"{name}.scales": scales, f"{name}.biases": biases}
        plain[f"{name}.weight"] = mx.dequantize(packed, scales, biases, 32, bits)
    own = {"group_size": 32, "bits": 4}
    config = {**DEEPSPEC, "quantization": {"group_size": 32, "bits": 8, "layers.0.self_attn.q_proj": own}}
    ours = load_drafter(write_head(tmp_path / "q", config, {**weights, **stored}), target)
    theirs = load_drafter(write_head(tmp_path / "p", weights={**weights, **plain}), target)
    assert draft(ours, target, [5, 6, 7], 8) == draft(theirs, target, [5, 6, 7], 8)


def test_a_drafter_of_another_width_brings_its_own_tables(target, tmp_path):
    fields = {**DEEPSPEC, "hidden_size": 16, "target_hidden_size": 32}
    tables = {"embed_tokens.weight": mx.random.normal((64, 16)), "lm_head.weight": mx.random.normal((64, 16))}
    drafter = load_drafter(write_head(tmp_path, fields, {**random_weights(translate(fields)), **tables}), target)
    assert drafter.hidden(context_of(drafter, target, [5, 6, 7]), mx.array([8])).shape == (1, 5, 16)
    assert len(draft(drafter, target, [5, 6, 7], 8)[0]) == 5
