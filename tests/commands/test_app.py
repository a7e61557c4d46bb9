"""The ways in and out of `mlx-dspark`: streams that are closed or broken, signals, early interrupts."""

import ast
import functools
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dspark.commands.app import run

MAIN = "from dspark.commands.entry import main; main()"
# A command that says it runs on a drawn bar, and then waits.
WAITING = """
import time, typer
from dspark.commands import app
from dspark.commands.rendering import stderr_console

@app.app.command()
def wait():
    from rich.live import Live
    with Live("a bar", console=stderr_console(), transient=True, redirect_stdout=False):
        print("up", flush=True)
        for _ in range(600):  # a signal just before one long sleep would be heard after it
            time.sleep(0.1)

from dspark.commands.entry import main
main()
"""


def shell(line: str, program: str = MAIN, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which `$RUN` is the program."""
    line = line.replace("$RUN", shlex.join([sys.executable, "-c", program]))
    return subprocess.run(["sh", "-c", line], env=os.environ | variables, capture_output=True, text=True, check=False)


@functools.cache
def usual_code(arguments: str) -> int:
    """How the program ends with these arguments where nothing is closed."""
    return shell(f"$RUN {arguments}").returncode


def spoken_once(stderr: str) -> bool:
    return len(stderr.splitlines()) == 1 and stderr.startswith("mlx-dspark: ")


@pytest.mark.usefixtures("light_mlx_lm")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["--version", "doctor"])
def test_a_closed_stream_is_no_error(closed: str, arguments: str) -> None:
    done = shell(f"$RUN {arguments} {closed}")
    assert (done.returncode, done.stderr) == (usual_code(arguments), "")
    assert bool(done.stdout) is (">&-" not in closed.replace("2>&-", ""))


def test_a_file_never_takes_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    program = (
        "import os; from dspark.commands.entry import open_streams; open_streams();"
        f"file = os.open({str(tmp_path / 'f')!r}, os.O_CREAT | os.O_RDWR);"
        "os.write(1, b'x'); os.write(2, b'y'); os._exit(file)"
    )
    assert shell("$RUN <&- >&- 2>&-", program).returncode == 3
    assert (tmp_path / "f").read_bytes() == b""


@pytest.mark.usefixtures("light_mlx_lm")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", ["--version", "doctor", "doctor --json", "--help"])
def test_a_full_disk_under_stdout_is_one_line_and_exit_1(arguments: str) -> None:
    done = shell(f"$RUN {arguments} >/dev/full")
    assert done.returncode == 1
    assert spoken_once(done.stderr)
    assert "No space left on device" in done.stderr


@pytest.mark.usefixtures("light_mlx_lm")
@pytest.mark.parametrize("arguments", ["--version", "doctor", "doctor --json", "--help"])
def test_a_reader_who_left_ends_it_quietly(arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments.split()], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("columns", ["0", "1", "-5", "²", "9" * 5000, "wide", ""])
def test_a_width_that_is_none_is_passed_over(columns: str) -> None:
    done = shell("$RUN --help", COLUMNS=columns, LINES=columns)
    assert "Traceback" not in done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) > 40


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_it_leave_the_terminal_in_order(number: signal.Signals) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING, "wait"],
        env=os.environ | {"TERM": "xterm", "FORCE_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    child.send_signal(number)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 128 + number
    assert "Traceback" not in said
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")


def test_a_signal_that_the_caller_ignored_stays_ignored() -> None:
    program = WAITING.replace("time.sleep(0.1)", "import os, signal; os.kill(os.getpid(), signal.SIGHUP)")
    program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{program}"
    done = subprocess.run([sys.executable, "-c", program, "wait"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["typer", "dspark.commands.race", "dspark.errors"])
def test_ctrl_c_while_it_imports_is_quiet(module: str) -> None:
    program = f"""
import signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
{MAIN}
"""
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_script_imports_next_to_nothing_before_main() -> None:
    program = "import sys; before = set(sys.modules); import dspark.commands.entry; print(set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == {"dspark", "dspark.commands", "dspark.commands.entry"}


def test_an_error_and_a_log_line_cannot_steer_the_terminal() -> None:
    name = "evil\x1b]0;owned\x07\x9b2J"
    program = f"""
import logging
from dspark.commands import app

@app.app.command()
def fail():
    from dspark.errors import CheckpointError
    logging.getLogger("dspark.x").warning("reading %s", {name!r})
    raise CheckpointError("cannot read " + {name!r})

from dspark.commands.entry import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program, "fail"], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines() == [
        "mlx-dspark: reading evil?]0;owned??2J",
        "mlx-dspark: cannot read evil?]0;owned??2J",
    ]


@pytest.mark.parametrize("arguments", ["calibrate --show --json", "race --model demo", "load --dry-run"])
def test_n7_without_mlx_every_command_says_so_in_one_line(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").write_text("raise ImportError('libmlx.so: wrong architecture')")
    done = shell(f"$RUN {arguments}", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {MAIN}")
    assert done.returncode == 1 and done.stdout == "" and spoken_once(done.stderr)
    assert "wrong architecture" in done.stderr and "mlx-dspark doctor" in done.stderr


@pytest.mark.parametrize("depths", ["", "4k,", "-1", "nan", "\u00b2", "9" * 5000, "9" * 20])
def test_a_depth_that_is_none_is_a_usage_error(depths: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "--depths", depths]) == 2
    said = capsys.readouterr()
    assert said.out == "" and spoken_once(said.err)
