import json

import pytest

from dspark.errors import ValidationFailed
from dspark.server.wishes import LoadBody, Wish
from dspark.settings import resolve


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path))


def asked(body, **flags):
    return Wish.asked(LoadBody.parse(json.dumps(body).encode()), resolve(flags, environment={}))


def test_machine_wide_settings_stay_and_those_of_a_pair_do_not():
    """P6, B20: another model gets its own draft settings, but the machine's context window, cache bits and warm-up."""
    flags = {
        "model": "org/a", "context_window": 4096, "kv_bits": 8, "warmup": False, "max_draft": 3,
        "confidence_threshold": 0.3, "drafter": "org/d", "mode": "dspark", "lookup_drafts": False,
    }  # fmt: skip
    other = asked({"model": "org/b"}, **flags)
    assert (other.context_window, other.kv_bits, other.warmup) == (4096, 8, False)
    assert (other.max_draft, other.confidence_threshold, other.drafter, other.mode) == (None, None, None, "auto")
    assert other.lookup_drafts is None
    same = asked({"model": "org/a"}, **flags)
    assert (same.max_draft, same.confidence_threshold, same.drafter, same.mode) == (3, 0.3, "org/d", "dspark")


def test_a_request_overrides_for_its_own_load_and_zero_resets():
    """P6: what one load was told holds for that load."""
    flags = {"model": "org/a", "context_window": 4096, "kv_bits": 8}
    assert asked({"model": "org/a", "context_window": 0, "kv_bits": 0}, **flags).context_window == 0
    assert asked({"model": "org/a"}, **flags).kv_bits == 8


def test_a_draft_of_nothing_is_plain_decoding():
    """P4: an explicit zero is not an absent value."""
    assert asked({"model": "m", "max_draft": 0}).speculation().mode == "baseline"
    assert asked({"model": "m", "max_draft": "auto"}).speculation().cap == "auto"
    assert asked({"model": "m"}).speculation().cap is None


@pytest.mark.parametrize(
    "field",
    [{"small_m": True}, {"multirow_attn": True}, {"cpu_split": 0.5}],
)
def test_what_does_not_exist_yet_is_refused_by_name(field):
    (name,) = field
    with pytest.raises(ValidationFailed, match=f"body -> {name}: not supported") as refused:
        asked({"model": "m", **field})
    assert refused.value.param == name


def test_sdpa_split_arrives():
    assert asked({"model": "m", "sdpa_split": False}).load_options().sdpa_split is False
    assert asked({"model": "m"}).load_options().sdpa_split is None


def test_switches_that_are_off_are_no_wish():
    switches = {"small_m": False, "multirow_attn": None, "cpu_split": 0}
    assert asked({"model": "m", **switches}).model == "m"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "model"),
        ({"model": ""}, "model"),
        ({"model": "m", "max_draft": -1}, "max_draft"),
        ({"model": "m", "max_draft": 3.5}, "max_draft"),
        ({"model": "m", "max_draft": True}, "max_draft"),
        ({"model": "m", "kv_bits": 5}, "kv_bits"),
        ({"model": "m", "confidence_threshold": 2}, "confidence_threshold"),
        ({"model": "m", "cpu_split": 1}, "cpu_split"),
        ({"model": "m", "mode": "fast"}, "mode"),
        ({"model": "m", "reasoning_effort": "max"}, "reasoning_effort"),
    ],
)
def test_junk_is_refused_by_field(body, param):
    with pytest.raises(ValidationFailed) as refused:
        asked(body)
    assert refused.value.param == param


def test_trust_is_never_a_requests_to_give():
    """O3: nothing in a request can allow remote code."""
    assert asked({"model": "m", "trust_remote_code": True}).trust_remote_code is False
