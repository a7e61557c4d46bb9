"""Config files of drafters, translated or refused by name."""

import json
import math

import pytest
from tiny import DEEPSPEC, dflash_config, nested_config, speculators_config

from dspark.drafters.fields import anchor_predicts
from dspark.drafters.packaging import read, read_config, translate
from dspark.errors import DrafterFormatError, PairingError


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def test_both_packagings_of_one_head_are_the_same_drafter():
    """M2: speculators number taps from 1, so the same head lists other ids."""
    deepspec, speculators = translate(DEEPSPEC), translate(speculators_config())
    assert deepspec.taps == speculators.taps == (0, 2, 4)
    for field in (
        "block",
        "mask_id",
        "hidden_size",
        "layers",
        "heads",
        "head_dim",
        "rope",
        "markov",
        "confidence",
    ):
        assert getattr(deepspec, field) == getattr(speculators, field)


def test_what_a_config_copied_from_its_target_switches_nothing_on():
    """M5: partial rotary factors, windows and mrope sections of the target are noise in this packaging."""
    noise = {"partial_rotary_factor": 0.25, "mrope_section": [1, 2, 3], "sliding_window": 8, "use_sliding_window": True}
    assert translate({**DEEPSPEC, **noise}) == translate(DEEPSPEC)


@pytest.mark.parametrize(
    ("block", "tokens", "field", "expected"),
    [
        (8, 7, None, False),
        (8, 8, None, True),
        (8, 7, False, False),
        (8, 8, True, True),
        (8, None, None, None),
        (8, None, True, True),
    ],
)
def test_which_slot_predicts_first(block, tokens, field, expected):
    """M1."""
    assert anchor_predicts(block, tokens, field) is expected


@pytest.mark.parametrize(("block", "tokens", "field"), [(8, 8, False), (8, 7, True), (8, 5, None)])
def test_contradictions_about_the_first_slot_are_refused(block, tokens, field):
    with pytest.raises(DrafterFormatError):
        anchor_predicts(block, tokens, field)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (without(DEEPSPEC, "target_layer_ids"), "target_layer_ids"),
        (without(DEEPSPEC, "mask_token_id"), "mask_token_id"),
        (without(DEEPSPEC, "rope_theta"), "rope_theta"),
        ({**DEEPSPEC, "block_size": 0}, "block_size"),
        ({**DEEPSPEC, "target_layer_ids": [4, 2]}, "4, 2"),
        ({**DEEPSPEC, "target_layer_ids": []}, "tap"),
        ({**DEEPSPEC, "markov_head_type": "lstm"}, "markov_head_type"),
        ({**DEEPSPEC, "markov_rank": 0}, "markov_rank"),
        ({**DEEPSPEC, "architectures": ["Eagle3Model"]}, "Eagle3Model"),
        ({**DEEPSPEC, "architectures": []}, "architecture"),
        ({**DEEPSPEC, "draft_vocab_size": 32}, "draft_vocab_size"),
        ({**DEEPSPEC, "enable_qwen35_gated_q_proj": True}, "partial_rotary_factor"),
        ({**DEEPSPEC, "rope_parameters": {"rope_theta": 5.0}}, "rope_theta"),
        (speculators_config(speculators_model_type="eagle3"), "eagle3"),
        (speculators_config(sample_from_anchor=False), "sample_from_anchor"),
        (speculators_config(draft_vocab_size=128), "draft_vocab_size"),
        (
            {
                "speculators_model_type": "dspark",
                "transformer_layer_config": {"model_type": "qwen3", "hidden_size": 8},
                "aux_hidden_state_layer_ids": [2, 4],
                "draft_vocab_size": 4,
                "sample_from_anchor": False,
            },
            "intermediate_size",
        ),
    ],
)
def test_a_config_that_cannot_be_read_names_the_field(config, named):
    """M7, M8, X9."""
    with pytest.raises(DrafterFormatError, match=named):
        translate(config)


@pytest.mark.parametrize("content", ["", "{", "[1]", '"text"'])
def test_a_file_that_is_no_config_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(DrafterFormatError):
        read_config(tmp_path)


def test_a_folder_without_config_says_so(tmp_path):
    with pytest.raises(DrafterFormatError, match="--drafter"):
        read_config(tmp_path)


def test_a_config_is_read_from_its_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DEEPSPEC))
    assert read_config(tmp_path).block == 5


@pytest.mark.parametrize(
    ("target", "values"),
    [({"hidden_size": 48}, ("32", "48")), ({"vocabulary": 99}, ("64", "99")), ({"layers": 7}, ("6", "7"))],
)
def test_a_target_of_another_shape_is_refused_with_both_values(target, values):
    """L11."""
    shape = {"hidden_size": 32, "vocabulary": 64, "layers": 6, **target}
    with pytest.raises(PairingError) as refusal:
        translate(DEEPSPEC).check_pairing(**shape)
    assert all(value in str(refusal.value) for value in values)


def test_a_tap_past_the_last_layer_but_one_is_refused():
    config = translate(speculators_config(aux_hidden_state_layer_ids=[1, 3, 6]))
    with pytest.raises(PairingError, match="layer 5"):
        config.check_pairing(hidden_size=32, vocabulary=64, layers=6)


NUMBERS = (True, "8", 2.5, math.nan, math.inf, -1, 10**30, [1], {"a": 1}, None)


def packagings():
    """One config of every packaging, by name."""
    specforge = nested_config("DSparkDraftModel", dflash_config={"projector_type": "dspark"})
    second = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 4, "selector_top_k": 6}
    return {
        "deepspec": DEEPSPEC,
        "speculators": speculators_config(),
        "dflash": dflash_config(),
        "dflash2": {**dflash_config(), "architectures": ["DFlash2DraftModel"], **second},
        "specforge": specforge,
        "liquid": nested_config("Lfm2DSparkDraftModel"),
        "nemotron": nested_config("Qwen3DSparkModel", use_swa=True, swa_window_size=4),
    }


def mutations(fields, path=()):
    """Every copy of `fields` in which one value, at any depth, is another kind of thing."""
    for key, value in fields.items():
        if isinstance(value, dict):
            for where, inner in mutations(value, (*path, key)):
                yield where, {**fields, key: inner}
        for other in NUMBERS:
            yield (*path, key), {**fields, key: other}


EXTRA = {
    "rope_scaling": None,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 2.0},
    "sliding_window": 4,
    "quantization": {"bits": 4, "group_size": 32},
    "dflash_config": {},
    "dspark_config": {},
    "speculators_config": None,
}


@pytest.mark.parametrize("name", packagings())
def test_no_value_of_any_field_makes_more_than_a_refusal(name):
    """Whatever stands in a config, it is read or refused in one line; sizes that would exhaust memory are not read."""
    fields = packagings()[name]
    translate(fields)
    for where, changed in mutations({**EXTRA, **fields}):
        try:
            config = translate(changed)
        except DrafterFormatError as refusal:
            assert "\n" not in str(refusal), where
        else:
            sizes = (config.hidden_size, config.heads * config.head_dim, config.intermediate_size, config.rows)
            assert all(type(size) is int and 0 < size <= 1 << 22 for size in sizes), where
            assert 0 < config.eps < math.inf and 0 < config.rope.theta < math.inf, where


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", True),
        ("head_dim", "8"),
        ("mask_token_id", 61.0),
        ("enable_confidence_head", 1),
        ("rms_norm_eps", math.inf),
        ("hidden_size", 10**9),
        ("rope_theta", True),
        ("quantization", "4bit"),
        ("dspark_config", [1]),
    ],
)
def test_values_that_only_look_right_are_refused_by_name(field, value):
    with pytest.raises(DrafterFormatError, match=field):
        translate({**DEEPSPEC, field: value})


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "{", "\ufeff", '{"a": ' + "9" * 5000 + "}"])
def test_a_config_that_is_no_config_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(DrafterFormatError, match=r"config\.json") as refusal:
        read(tmp_path)
    assert "\n" not in str(refusal.value)
