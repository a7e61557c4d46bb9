"""`mlx-dspark machine` as a user types it."""

import json

import pytest
import typer
from typer.testing import CliRunner

from dspark.commands.machine import machine
from dspark.machine import bandwidth, load, platform
from dspark.machine.bandwidth import Bandwidth
from dspark.machine.facts import Chip, CoreGroup, Memory, Power, System

app = typer.Typer()
app.command()(machine)


class M5Max:
    def chip(self) -> Chip:
        groups = (CoreGroup("Super", 6), CoreGroup("Performance", 12))
        return Chip("Apple M5 Max", 18, groups, usable_cores=18, gpu_cores=40)

    def system(self) -> System:
        return System("macOS", "26.5", "arm64", translated=False, virtual=False)

    def power(self) -> Power:
        return Power("mains", "normal", "nominal")

    def memory(self) -> Memory:
        return Memory(128 << 30, 90 << 30, "normal", 0, 0, 0, gpu_wired_limit_bytes=112 << 30)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure on a little memory: only the form of the answer is looked at."""
    monkeypatch.setattr(bandwidth, "BUFFER_BYTES", 8 << 20)
    monkeypatch.setattr(load, "busy_cores", lambda before, after: 0.0)


@pytest.mark.usefixtures("quick")
def test_json_has_the_bandwidth_with_its_method() -> None:
    result = CliRunner().invoke(app, ["--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert found["bandwidth"]["gb_s"] > 0
    assert found["bandwidth"]["source"] == "measured"
    assert "copy of 8 MiB on" in found["bandwidth"]["method"] or "GPU" in found["bandwidth"]["method"]
    assert {"chip", "system", "memory", "runtime", "published_bandwidth", "busy_cores"} <= set(found)


@pytest.mark.usefixtures("quick")
def test_published_figure_stands_beside_the_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "current", M5Max)
    monkeypatch.setattr(bandwidth, "measure", lambda found: Bandwidth(540.25, "a method", "measured"))
    text = CliRunner().invoke(app, []).stdout
    assert "18 CPU (6 Super, 12 Performance), 40 GPU" in text
    assert "540.25 GB/s measured: a method" in text
    assert "614 GB/s: specification (checked)" in text
    assert "112.0 GiB, set by iogpu.wired_limit_mb" in text
    found = json.loads(CliRunner().invoke(app, ["--json"]).stdout)
    assert (found["bandwidth"]["gb_s"], found["published_bandwidth"]["gb_s"]) == (540.25, 614.0)
    assert found["chip"]["generation"] == "M5"


@pytest.mark.usefixtures("quick")
def test_other_busy_programs_are_a_warning_beside_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "busy_cores", lambda before, after: 1.5)
    result = CliRunner().invoke(app, ["--json"])
    assert json.loads(result.stdout)["busy_cores"] == 1.5
    assert "1.5 cores busy" in result.stderr


@pytest.mark.usefixtures("quick")
def test_nothing_known_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "current", platform.Unknown)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LANG", "C")
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert "unknown" in result.stdout
    assert "None" not in result.stdout
    assert all(len(line) <= 60 for line in result.stdout.splitlines())
