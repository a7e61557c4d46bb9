import json

import pytest

from dspark.server.order import SamplingWishes
from dspark.server.serving import listed_name, own_wishes


@pytest.mark.parametrize(
    ("config", "wishes"),
    [
        (None, SamplingWishes()),
        ({"temperature": 0.7, "top_p": 0.8, "top_k": 20}, SamplingWishes(temperature=0.7, top_p=0.8, top_k=20)),
        ({"do_sample": False, "temperature": 0.7}, SamplingWishes()),
        ({"do_sample": True}, SamplingWishes(temperature=1.0)),
        ({"temperature": 0.7, "top_p": 7, "top_k": "x", "min_p": -1}, SamplingWishes(temperature=0.7)),
        ({"temperature": True, "repetition_penalty": 0}, SamplingWishes()),
        ([], SamplingWishes()),
    ],
)
def test_what_a_model_says_of_sampling(tmp_path, config, wishes):
    if config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert own_wishes(tmp_path) == wishes


def test_a_broken_generation_config_counts_for_nothing(tmp_path, caplog):
    (tmp_path / "generation_config.json").write_text('{"temperature": NaN, ')
    assert own_wishes(tmp_path) == SamplingWishes()
    assert "generation_config.json" in caplog.text


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("org/model", "org/model"),
        ("demo", "demo"),
        ("/home/me/models/qwen", "qwen"),
        ("~nobody-of-that-name/models/qwen", "qwen"),
        ("/c/hub/models--org--model/snapshots/0a1b2c", "org/model"),
    ],
)
def test_a_path_is_listed_as_no_more_than_the_model(model, name):
    assert listed_name(model) == name
