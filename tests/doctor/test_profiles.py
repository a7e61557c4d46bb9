"""Calibration profiles as the doctor tells of them."""

from profiled import made

from dspark.doctor.profiles import ProfileState, profile_checks, states
from dspark.tuning import profiles


def test_those_in_force_are_named_together():
    (check,) = profile_checks([ProfileState("demo", "current"), ProfileState("a/b", "current")])
    assert (check.id, check.status, check.seen) == ("profiles", "ok", "measured on this machine: a/b, demo")


def test_each_that_is_not_relied_upon_has_its_own_remedy():
    found = profile_checks([ProfileState("demo", "stale", "mlx 0.31"), ProfileState("my model", "foreign")])
    assert [(check.id, check.status) for check in found] == [("profiles.demo", "warn"), ("profiles.my model", "warn")]
    assert found[0].seen == "demo: measured with other versions (mlx 0.31)"
    assert found[1].command == "mlx-dspark calibrate --model 'my model'"


def test_one_that_cannot_be_read_names_no_model_to_calibrate():
    (check,) = profile_checks([ProfileState("x.yaml", "unreadable", "it is broken")])
    assert (check.status, check.command) == ("warn", None) and "delete it" in check.todo


def test_pairs_without_one():
    (check,) = profile_checks([], ["demo"])
    assert (check.status, check.command) == ("warn", "mlx-dspark calibrate --model demo")


def test_nothing_at_all_is_well():
    (check,) = profile_checks([])
    assert check.status == "ok"


def test_profiles_on_disk_are_judged_by_this_machine_and_stack(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path))
    here = {"chip": "Apple M4 Pro", "gpu_cores": 20, "mlx": "0.32.4"}
    profiles.write(made())
    assert [state.state for state in states(here)] == ["current"]
    assert states(here | {"mlx": "0.33.0"})[0] == ProfileState("org/Model-4B", "stale", "mlx 0.32.4")
    assert states(here | {"chip": "Apple M1", "mlx": "0.33.0"})[0].state == "foreign"
    profiles.write(made(disturbances=["hot"]))
    assert states(here)[0] == ProfileState("org/Model-4B", "disturbed", "hot")
    (tmp_path / "profiles" / "zz.yaml").write_text("[")
    assert states(here)[1].state == "unreadable" and states(here)[1].pair == "zz.yaml"
