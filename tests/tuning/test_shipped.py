"""Profiles that come with the package: hints about a pair, never measurements of this machine."""

from importlib.resources import files
from pathlib import Path

import pytest

from dspark.tuning import profiles

SHIPPED = [Path(str(entry)) for entry in files("dspark.profiles").iterdir() if entry.name.endswith(".yaml")]


def test_the_demo_pair_has_one_in_each_precision_that_was_measured():
    found = [profiles.read(path) for path in SHIPPED]
    assert {(one.measured.model, one.measured.dtype) for one in found} == {("demo", "float32"), ("demo", "4 bits")}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_even_where_it_was_measured_it_is_a_prior_only(path, tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path))
    shipped = profiles.read(path)
    assert shipped.measured.kind == "prior" and not shipped.measured.disturbances
    found = profiles.find("demo", shipped.key.key())
    assert found.profile is None and found.prior == shipped
    explicit = profiles.find("demo", shipped.key.key(), explicit=str(path))
    assert explicit.profile is None and "a hint only" in explicit.notes[0]
