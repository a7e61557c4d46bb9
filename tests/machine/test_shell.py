"""Running the system's tools."""

import sys

import pytest

from dspark.machine import shell


def test_output_is_kept_whatever_the_exit_status() -> None:
    program = "import sys; print('hw.ncpu: 8'); print('sysctl: unknown oid', file=sys.stderr); sys.exit(1)"
    assert shell.output(sys.executable, "-c", program) == "hw.ncpu: 8\n"


def test_the_language_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert shell.output(sys.executable, "-c", "import os; print(os.environ['LC_ALL'])") == "C\n"


def test_a_missing_tool_is_no_answer() -> None:
    assert shell.output("/nowhere/sysctl", "hw.ncpu") is None


def test_a_tool_that_hangs_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "TIMEOUT_S", 0.1)
    assert shell.output(sys.executable, "-c", "import time; time.sleep(60)") is None


def test_bytes_that_are_no_text_do_not_raise() -> None:
    assert shell.output(sys.executable, "-c", "import os; os.write(1, b'\\xff!')") == "�!"
