"""Python, the versions of packages, and combinations known as bad."""

import pytest
from pydantic import ValidationError

from dspark import __version__
from dspark.doctor import packages
from dspark.doctor.known_bad import KnownBad, known_bad
from dspark.doctor.packages import MLX, Distribution, unmet_requirements
from dspark.doctor.probe import Stack
from dspark.machine.facts import Runtime

M5 = Stack(Runtime("3.12.1", mlx="0.32.4", device="gpu", gpu_architecture="applegpu_g17s"))
M3 = Stack(Runtime("3.12.1", mlx="0.32.4", device="gpu", gpu_architecture="applegpu_g15s"))


def test_a_package_that_is_well_missing_broken_or_of_another_version():
    wanted = "mlx[cpu]<0.33,>=0.32.4"
    assert packages.package(MLX, "0.32.4", None, wanted) == MLX.ok("0.32.4")
    missing = packages.package(MLX, None, None, wanted)
    assert (missing.status, missing.command) == ("fail", f"python -m pip install '{wanted}'")
    assert packages.package(MLX, "0.40.0", None, wanted).status == "warn"


def test_l7_a_package_that_does_not_import_is_named_with_its_version():
    broken = packages.package(MLX, "0.32.4", "ImportError: libmlx.so", "mlx")
    assert (broken.status, broken.seen) == ("fail", "0.32.4 does not import (ImportError: libmlx.so)")


def test_python():
    assert packages.python("3.12.1", ">=3.11").status == "ok"
    old = packages.python("3.9.6", ">=3.11")
    assert (old.status, ">=3.11" in (old.todo or "")) == ("fail", True)


def test_n4_the_version_is_the_one_of_the_code(monkeypatch):
    assert packages.version().seen.startswith(__version__)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.1")
    drifted = packages.version()
    assert (drifted.status, drifted.seen) == ("warn", f"{__version__}, installed as 0.0.1")


def unmet(**installed: Distribution):
    return list(unmet_requirements("tool", installed.get))


def test_requirements_are_followed_down_to_what_is_below():
    found = unmet(
        tool=Distribution("1", ("lm>=2", "extra-thing; extra == 'test'")),
        lm=Distribution("2.1", ("transformers>=5.7", "nonsense ==== 3")),
        transformers=Distribution("4.57"),
    )
    assert found == [("lm", "transformers>=5.7", "4.57")]


def test_requirements_of_an_extra_count_where_the_extra_is_asked_for():
    mlx = Distribution("1", ("mlx-cpu==1; extra == 'cpu'",))
    assert unmet(tool=Distribution("1", ("mlx[cpu]",)), mlx=mlx) == [("mlx", "mlx-cpu==1", None)]
    assert unmet(tool=Distribution("1", ("mlx",)), mlx=mlx) == []


def test_packages_that_ask_for_each_other_come_to_an_end():
    assert unmet(tool=Distribution("1", ("other",)), other=Distribution("1", ("tool",))) == []


def test_this_environment_is_sound():
    check = packages.requirements()
    assert "mlx" not in check.seen or check.status == "ok"
    assert "transformers" in check.seen


def troubles(stack, environment=None, **versions):
    installed = {name.replace("_", "-"): version for name, version in versions.items()}
    return {check.id: check for check in packages.known_trouble(stack, environment or {}, installed.get)}


def test_every_known_trouble_has_a_source_and_a_remedy():
    entries = known_bad()
    assert len({entry.id for entry in entries}) == len(entries) > 0
    assert all(entry.source.scheme == "https" and entry.todo and entry.command for entry in entries)


def test_l7_transformers_that_mlx_lm_does_not_import_with():
    found = troubles(M3, transformers="5.13.0", mlx_lm="0.31.3")
    assert found["known-bad.transformers-5.13.0"].status == "fail"
    assert "pull/1460" in found["known-bad.transformers-5.13.0"].seen
    assert [*troubles(M3, transformers="5.13.0", mlx_lm="0.32.2")] == ["known-bad"]
    assert [*troubles(M3, transformers="5.14.0", mlx_lm="0.31.3")] == ["known-bad"]


def test_rounded_float32_products_are_a_matter_of_m5_and_can_be_switched_off():
    assert troubles(M5, mlx="0.32.4")["known-bad.tf32"].command == "export MLX_ENABLE_TF32=0"
    assert [*troubles(M5, {"MLX_ENABLE_TF32": "0"}, mlx="0.32.4")] == ["known-bad"]
    assert [*troubles(M3, mlx="0.32.4")] == ["known-bad"]
    a18 = Stack(Runtime("3.12.1", device="gpu", gpu_architecture="applegpu_g17p"))
    assert [*troubles(a18, mlx="0.32.4")] == ["known-bad"]


def test_without_a_package_there_is_no_trouble_with_it():
    (check,) = packages.known_trouble(Stack(Runtime("3.12.1")), {}, lambda name: None)
    assert check.status == "ok"


@pytest.mark.parametrize("change", [{"packages": {"mlx": "newest"}}, {"source": "somebody said"}, {"cause": "x"}])
def test_an_entry_that_means_nothing_is_refused(change):
    entry = known_bad()[0].model_dump(mode="json") | change
    with pytest.raises(ValidationError):
        KnownBad.model_validate(entry)
