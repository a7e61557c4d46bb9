"""`mlx-dspark machine` as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tiny import write_llama
from typer.testing import CliRunner

from dspark.commands import machine as command
from dspark.commands.machine import machine
from dspark.errors import DSparkError, ModelNotFound, UsageError
from dspark.hub import demo
from dspark.machine import arithmetic, bandwidth, platform, watch
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
        return Power("mains", "high", "nominal")

    def memory(self) -> Memory:
        return Memory(128 << 30, 90 << 30, "normal", 0, 0, 0, gpu_wired_limit_bytes=112 << 30)


class OnBattery(M5Max):
    def power(self) -> Power:
        return Power("battery", "low", "heavy")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure on a little memory: only the form of the answer is looked at."""
    monkeypatch.setattr(bandwidth, "BUFFER_BYTES", 8 << 20)
    monkeypatch.setattr(arithmetic, "SIDES", {"cpu": (16,), "gpu": (16,)})
    monkeypatch.setattr(watch, "busy_cores", lambda before, after: 0.0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model")


def told(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["--json", *arguments], catch_exceptions=False)
    assert result.exit_code == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(result.stdout, parse_constant=refuse)


def refused(*arguments: str) -> DSparkError:
    with pytest.raises(DSparkError) as caught:
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return caught.value


def test_json_has_the_bandwidth_with_its_method() -> None:
    found = told()
    assert found["bandwidth"]["gb_s"] > 0
    assert found["bandwidth"]["source"] == "measured"
    assert "copy of 8 MiB on" in found["bandwidth"]["method"] or "GPU" in found["bandwidth"]["method"]
    assert {"chip", "system", "memory", "runtime", "published_bandwidth", "conditions", "arithmetic"} <= set(found)
    assert found["model"] is None


def test_published_figure_stands_beside_the_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "current", M5Max)
    monkeypatch.setattr(bandwidth, "measure", lambda found: Bandwidth(540.25, "a method", "measured"))
    text = CliRunner().invoke(app, []).stdout
    assert "18 CPU (6 Super, 12 Performance), 40 GPU" in text
    assert "540.25 GB/s measured: a method" in text
    assert "614 GB/s: specification (checked)" in text
    assert "112.0 GiB, set by iogpu.wired_limit_mb" in text
    assert "mains, high power mode, thermal pressure nominal" in text
    found = told()
    assert (found["bandwidth"]["gb_s"], found["published_bandwidth"]["gb_s"]) == (540.25, 614.0)
    assert (found["chip"]["generation"], found["chip"]["performance_cores"]) == ("M5", 18)


def test_what_disturbs_is_said_beside_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "current", OnBattery)
    result = CliRunner().invoke(app, [])
    assert "runs on battery" in result.stderr and "thermal pressure heavy" in result.stderr
    found = told()
    assert (found["conditions"]["power_source"], found["conditions"]["thermal"]) == ("battery", "heavy")
    assert len(found["disturbances"]) == 3


def test_nothing_known_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "current", platform.Unknown)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LANG", "C")
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert "unknown" in result.stdout
    assert "None" not in result.stdout
    assert all(len(line) <= 60 for line in result.stdout.splitlines())


def test_a_model_has_its_ceilings(model: Path) -> None:
    found = told("--model", str(model), "--depth", "100")["model"]
    assert found["traffic"]["weight_bytes"] == found["start"]["bytes_per_token"] > 0
    assert (found["given"]["depth"], found["window"]["depth"]) == (100, 256)
    assert found["given"]["bytes_per_token"] > found["start"]["bytes_per_token"]
    assert found["standing"] is None and found["verdict"].endswith(".")


def test_kv_bits_arrive(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model", head_dim=32)
    plain, packed = (told("--model", str(model), *more)["model"] for more in ((), ("--kv-bits", "8")))
    assert plain["window"]["bytes_per_token"] > packed["window"]["bytes_per_token"]


def test_kv_bits_that_the_heads_do_not_divide_into(model: Path) -> None:
    assert "leave the KV bits out" in str(refused("--model", str(model), "--kv-bits", "8"))


def test_a_config_without_weights_is_enough(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model", dtype="float32")
    whole = told("--model", str(folder))["model"]
    (folder / "model.safetensors").unlink()
    found = told("--model", str(folder))["model"]
    assert (found["traffic"]["source"], whole["traffic"]["source"]) == ("config", "checkpoint")
    assert found["traffic"]["weight_bytes"] == whole["traffic"]["weight_bytes"]


def test_plain_decoding_is_timed_where_asked(model: Path) -> None:
    standing = told("--model", str(model), "--measure")["model"]["standing"]
    assert standing["tokens_per_s"] > 0 and standing["depth"] > 0


def test_the_terminal_shows_the_model_too(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = (
        CliRunner().invoke(app, ["--model", str(model), "--depth", "9", "--plot", "-"], catch_exceptions=False).stdout
    )
    assert "6 layers of full attention" in text and "at depth 9" in text and "(full window)" in text
    assert "roofline: GFLOP/s over operations per byte" in text and "decoding: tokens/s" in text
    assert all(len(line) <= 60 for line in text.splitlines() if str(model) not in line)
    assert text.isascii()


def test_the_demo_model_is_not_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path))
    assert isinstance(refused("--model", "demo"), ModelNotFound)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["--depth", "5"], UsageError, "--depth is about a model"),
        (["--measure"], UsageError, "--measure is about a model"),
        (["--plot", "-"], UsageError, "--plot is about a model"),
        (["--model", "demo", "--kv-bits", "3"], UsageError, "give 4 or 8"),
        (["--model", "demo", "--json", "--plot", "-"], UsageError, "give --plot a file"),
        (["--model", "demo", "--plot", "a.txt"], UsageError, ".png"),
        (["--model", "/no/such/folder"], ModelNotFound, "no folder here"),
        (["--model", "~nobody-of-that-name/m"], ModelNotFound, "no folder here"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], kind: type[DSparkError], words: str) -> None:
    error = refused(*arguments)
    assert isinstance(error, kind) and words in str(error)


def test_a_drawing_goes_to_a_file(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = CliRunner().invoke(
        app, ["--model", str(model), "--json", "--plot", str(tmp_path / "roof.png")], catch_exceptions=False
    )
    assert json.loads(result.stdout)["model"]["name"] == str(model)
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")


def test_n7_json_is_alone_on_stdout(tmp_path: Path) -> None:
    """Without MLX, with warnings: valid JSON and nothing else."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").write_text("raise ImportError('no MLX here')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from dspark.machine import bandwidth; bandwidth.BUFFER_BYTES = 8 << 20\n"
        "from dspark.commands.app import run; sys.exit(run(['machine', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["arithmetic"] is None and "no MLX here" in found["runtime"]["mlx_error"]


@pytest.mark.real
def test_the_demo_model() -> None:
    demo.target("fp32")
    found = told("--model", "demo")["model"]
    assert found["traffic"]["caches"][0]["layers"] == 30
    assert command.PROMPT


def test_a_name_too_long_for_a_path_is_a_model_that_is_not_there():
    with pytest.raises(ModelNotFound):
        command._present("x" * 5000, None)
