"""The whole examination: everything is asked once, and nothing takes it down."""

import os
import pwd
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from dspark.doctor import Address, Report, examine
from dspark.doctor.probe import Stack
from dspark.machine.blas import Blas
from dspark.machine.facts import Chip, Memory, Power, Runtime, System

NOBODY = Address(port=9)
LINUX = Stack(Runtime("3.12.1", "0.1.0", "0.32.4", "0.32.2", "cpu", "AMD EPYC"), blas=Blas(None))


class Here:
    """A platform of the test's making."""

    def chip(self) -> Chip:
        return Chip("AMD EPYC", 8)

    def system(self) -> System:
        return System("Linux", "Debian", "x86_64")

    def memory(self) -> Memory:
        return Memory(16 << 30, 8 << 30)

    def power(self) -> Power:
        return Power()


def examined(here=None, look=lambda: LINUX, **more):
    report = examine(NOBODY, here or Here(), look, **more)
    return report, {check.id: check for check in report.checks}


def test_what_is_asked_and_when():
    report, found = examined()
    wanted = """
        version python mlx mlx-lm requirements known-bad architecture os device memory pressure swap power thermal load
        disk.1 disk.2 models.1 models.2 pairs port server environment.HF_TOKEN hub
    """
    assert set(wanted.split()) <= found.keys()
    assert len(found) == len(report.checks)
    assert report.ok
    assert all(check.title and datetime.fromisoformat(check.checked) for check in report.checks)
    assert all(check.todo for check in report.checks if check.status != "ok")


def test_a_real_report_is_valid_by_its_schema():
    report, _ = examined()
    again = TypeAdapter(Report).validate_python(TypeAdapter(Report).dump_python(report, mode="json"))
    assert again.as_dict() == report.as_dict()


@pytest.mark.parametrize("fact", ["chip", "system", "memory", "power"])
def test_a_check_that_crashes_is_broken_and_the_others_go_on(fact):
    def broken():
        raise ZeroDivisionError("of all things")

    here = Here()
    setattr(here, fact, broken)
    report, found = examined(here)
    crashed = [check for check in report.checks if "ZeroDivisionError: of all things" in check.seen]
    asked_of = {"chip": {"blas"}, "system": {"os", "device"}, "memory": {"memory", "pairs"}, "power": {"power"}}
    assert asked_of[fact] <= {check.id for check in crashed}
    assert all(check.status == "fail" and "report this" in (check.todo or "") for check in crashed)
    assert found["python"].status == "ok"


def test_a_check_that_hangs_is_left_behind():
    class Slow(Here):
        def system(self) -> System:
            threading.Event().wait(20)
            raise AssertionError

    _, found = examined(Slow(), limit_s=3.0)
    assert found["os"].seen == "no answer in time"
    assert found["os"].status == "warn"
    assert found["memory"].status == "ok"


def test_without_mlx_the_rest_is_still_asked():
    report, found = examined(look=lambda: Stack(Runtime("3.12.1", mlx_error="ModuleNotFoundError: mlx")))
    assert not report.ok
    assert found["mlx"].status == found["mlx-lm"].status == "fail"
    assert "device" not in found
    assert found["memory"].status == "ok"


@pytest.mark.parametrize("variable", ["HOME", "MLX_DSPARK_HOME"])
def test_without_a_home_folder(variable, monkeypatch):
    if variable == "HOME":
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # an account that nobody knows
    else:
        monkeypatch.setenv("MLX_DSPARK_HOME", "~nobody-by-this-name/x")
    report, found = examined()
    assert found["home"].status == "fail"
    assert found["home"].todo == "set HOME, or set MLX_DSPARK_HOME to a folder elsewhere"
    assert [check.id for check in report.checks if check.status == "fail"] == ["home"]


def test_a_home_that_cannot_be_written(home, monkeypatch):
    access = os.access
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK | os.X_OK and access(path, mode))
    report, found = examined()
    assert found["disk.1"].status == "fail"
    assert not Path(home, ".mlx-dspark").exists()
    assert not report.ok


def test_no_model_code_and_no_mlx_is_loaded_into_this_process():
    program = (
        "import sys; from dspark.doctor import Address, examine;"
        "from dspark.doctor.probe import Stack; from dspark.machine.facts import Runtime;"
        "examine(Address(port=9), look=lambda: Stack(Runtime('3.12.1')));"
        "ours = [f'dspark.{room}' for room in ('engine', 'pair', 'decoding', 'targets', 'drafters')];"
        "print([name for name in ('mlx', 'mlx_lm', 'transformers', *ours) if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
