"""Which rotary scaling a config describes."""

import pytest

from dspark.drafters.rope import rope_scaling

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        (None, None),
        ({"rope_theta": 1e6}, None),
        ({"rope_type": "default", "partial_rotary_factor": 0.25, "mrope_section": [1, 1]}, None),
        (None, {"type": "mrope", "mrope_section": [1, 1, 1]}),
        ({"rope_type": "default"}, {"rope_type": "default"}),
    ],
)
def test_plain_positions(parameters, scaling):
    """M5: sections and partial factors of the target describe no scaling of the drafter."""
    assert rope_scaling(parameters, scaling, 128) is None


@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [({**YARN, "rope_theta": 1e6}, None), (None, YARN), (YARN, YARN), ({"rope_theta": 1e6}, YARN)],
)
def test_one_scaling_wherever_it_is_written(parameters, scaling):
    assert rope_scaling(parameters, scaling, 128) == {**YARN, "max_position_embeddings": 128}


def test_the_older_name_of_the_type_is_read():
    assert rope_scaling(None, {"type": "linear", "factor": 2.0}, None) == {
        "type": "linear",
        "rope_type": "linear",
        "factor": 2.0,
        "max_position_embeddings": None,
    }


def test_the_usual_strength_of_yarn_may_be_spelled_out():
    told = {**YARN, "attention_factor": 1.1386}
    assert rope_scaling(told, None, None) == {**told, "max_position_embeddings": None}
