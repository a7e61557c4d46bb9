"""`mlx-dspark doctor` as a user types it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dspark.commands.doctor import doctor
from dspark.machine import platform
from dspark.machine.facts import Chip, Memory, Power, System

app = typer.Typer()
app.command()(doctor)
PROGRAM = "import typer; from dspark.commands.doctor import doctor; typer.run(doctor)"


class TranslatedMac:
    """A platform on which nothing can work."""

    def chip(self) -> Chip:
        return Chip("Apple M1", 8)

    def system(self) -> System:
        return System("macOS", "26.5", "x86_64", translated=True)

    def power(self) -> Power:
        return Power("mains", "normal", "nominal")

    def memory(self) -> Memory:
        return Memory(16 << 30, 8 << 30)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder and no variables of the caller's."""
    for name in [name for name in os.environ if name.startswith(("HF_", "MLX_", "OPENBLAS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "maria"))
    monkeypatch.setenv("USER", "maria")
    return tmp_path / "maria"


def run(*arguments: str, python_path: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    if python_path:
        environment["PYTHONPATH"] = str(python_path)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.usefixtures("home")
def test_json_is_alone_on_stdout() -> None:
    done = run("--json")
    report = json.loads(done.stdout)
    assert report["ok"] is (done.returncode == 0)
    statuses = {check["id"]: check["status"] for check in report["checks"]}
    assert {"python", "mlx", "mlx-lm", "architecture", "os", "memory", "models.1"} <= set(statuses)
    assert set(statuses.values()) <= {"ok", "warn", "fail"}


@pytest.mark.usefixtures("home", "light_mlx_lm")
def test_n7_python_reads_the_json_whatever_is_said_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("--json", "--models", "--fix-hints", PYTHONWARNINGS="always")
    read = subprocess.run([sys.executable, "-m", "json.tool"], input=done.stdout, text=True, capture_output=True)
    assert read.returncode == 0
    assert {pair["id"] for pair in json.loads(done.stdout)["models"]} >= {"demo", "qwen3-8b"}


@pytest.mark.usefixtures("home", "light_mlx_lm")
def test_warnings_alone_exit_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", "/nowhere")
    result = CliRunner().invoke(app, [])
    assert "warn  Models" in result.stdout
    assert result.exit_code == 0


@pytest.mark.usefixtures("home", "light_mlx_lm")
def test_models_lists_every_pair_with_its_fit() -> None:
    without, listed = (CliRunner().invoke(app, flags).stdout for flags in ([], ["--models"]))
    assert "qwen3-14b" not in without
    (line,) = [line for line in listed.splitlines() if " qwen3-14b " in line]
    assert "19 GB" in line
    assert line.startswith(("fits", "tight", "not now", "too large"))


@pytest.mark.usefixtures("home", "light_mlx_lm")
def test_fix_hints_are_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_DSPARK_TRUST_REMOTE_CODE", "1")
    done = CliRunner().invoke(app, ["--fix-hints"])
    lines = done.stdout.splitlines()
    assert "unset MLX_DSPARK_TRUST_REMOTE_CODE" in lines
    assert any(line.startswith("# MLX_DSPARK_TRUST_REMOTE_CODE: 1: unset it") for line in lines)
    assert all(line.startswith("# ") or "ok" not in line.split() for line in lines)
    assert subprocess.run(["sh", "-n"], input=done.stdout, text=True, check=False).returncode == 0


@pytest.mark.usefixtures("home")
def test_a_broken_mlx_is_reported_and_the_rest_still_checked(tmp_path: Path) -> None:
    (tmp_path / "shadow" / "mlx").mkdir(parents=True)
    (tmp_path / "shadow" / "mlx" / "__init__.py").write_text(
        "print('hello'); raise ImportError('libmlx.so is missing')"
    )
    done = run("--json", python_path=tmp_path / "shadow")
    checks = {check["id"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1
    assert checks["mlx"]["status"] == "fail"
    assert "libmlx.so is missing" in checks["mlx"]["seen"]
    assert "pip install" in checks["mlx"]["command"]
    assert checks["memory"]["status"] in ("ok", "warn")


@pytest.mark.usefixtures("light_mlx_lm")
def test_every_searched_folder_is_listed_in_order(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", str(tmp_path / "mine"))
    report = json.loads(CliRunner().invoke(app, ["--json"]).stdout)
    folders = [check["seen"] for check in report["checks"] if check["id"].startswith("models.")]
    assert folders[0] == f"extra: {tmp_path}/mine, not there"
    assert folders[1].startswith(f"own: {home}/.mlx-dspark/models")
    assert any(f"{home}/.cache/huggingface/hub" in folder for folder in folders)
    assert any(".lmstudio" in folder for folder in folders)


@pytest.mark.usefixtures("light_mlx_lm")
def test_redaction_leaves_no_home_and_no_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", f"{home}/mine")
    done = CliRunner().invoke(app, ["--json", "--redact"])
    assert json.loads(done.stdout)
    assert "maria" not in done.stdout
    assert "~/mine" in done.stdout
    assert socket.gethostname() not in done.stdout


@pytest.mark.usefixtures("home", "light_mlx_lm")
def test_something_broken_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "current", TranslatedMac)
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 1
    assert "FAIL  Architecture" in result.stdout
    assert "Rosetta" in result.stdout
    assert "-> make the environment anew" in result.stdout


@pytest.mark.usefixtures("home", "light_mlx_lm")
def test_plain_output_in_a_c_locale_without_colour_at_60_columns() -> None:
    done = run(LANG="C", LC_ALL="C", NO_COLOR="1", COLUMNS="60", LD_PRELOAD="")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    long = [line for line in done.stdout.splitlines() if len(line) > 60 and " " in line.strip()]
    assert all(line.lstrip().startswith(("export ", "sudo ", "apt-get ")) for line in long)  # commands stay whole
    assert "ok    Python" in done.stdout


@pytest.mark.usefixtures("home", "light_mlx_lm")
def test_no_character_is_too_much_for_an_encoding(tmp_path: Path) -> None:
    done = run(PYTHONIOENCODING="ascii", MLX_DSPARK_MODEL_DIRS=str(tmp_path / "Modèles"))
    assert "Mod?les" in done.stdout
    assert "Traceback" not in done.stderr


def test_importing_the_command_imports_nothing_heavy() -> None:
    program = (
        "import sys, dspark.commands.doctor, dspark.commands.machine, dspark.commands.rendering;"
        "heavy = 'mlx', 'mlx_lm', 'numpy', 'rich.console', 'psutil', 'pydantic', 'httpx', 'dspark.doctor';"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
