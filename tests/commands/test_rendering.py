"""Consoles, tables and JSON for terminals of every kind."""

import os
import subprocess
import sys

import pytest

TABLE = """
from dspark.commands.rendering import print_json, print_lines, stdout_console, table
drawn = table("arm", "tok/s", numeric=("tok/s",))
drawn.add_row("a long name of an arm that has to be folded somewhere [bold]", "12.5")
stdout_console().print(drawn)
"""


def run(program: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("LC_ALL", "LANG", "COLUMNS")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment | variables, capture_output=True, check=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize("variables", [{"LANG": "C"}, {"LC_ALL": "POSIX"}, {"PYTHONIOENCODING": "ascii"}])
def test_a_table_is_ascii_where_the_terminal_is(variables: dict[str, str]) -> None:
    assert run(TABLE, **variables).isascii()


def test_a_table_has_a_drawn_rule_elsewhere() -> None:
    assert "─" in run(TABLE, LANG="de_DE.UTF-8", PYTHONIOENCODING="utf-8")


def test_a_table_fits_60_columns_and_keeps_its_numbers_whole() -> None:
    lines = run(TABLE, COLUMNS="60", LANG="C").splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.rstrip().endswith("12.5") for line in lines)
    assert "[bold]" in "".join(lines).replace(" ", "")


def test_lines_wrap_with_their_indent_and_never_break_a_path() -> None:
    path = "/models/" + "x" * 70
    program = f"""
from dspark.commands.rendering import print_lines, stdout_console
print_lines(stdout_console(), "models are looked for in {path} and nowhere else [at] all", indent=2, hanging=4)
"""
    lines = run(program, COLUMNS="60").splitlines()
    assert lines == ["  models are looked for in", f"      {path}", "      and nowhere else [at] all"]


def test_json_is_ascii_and_refuses_what_is_not_json() -> None:
    program = "from dspark.commands.rendering import print_json; print_json({'name': 'é'})"
    assert run(program) == '{\n  "name": "\\u00e9"\n}\n'
    with pytest.raises(subprocess.CalledProcessError):
        run("from dspark.commands.rendering import print_json; print_json({'rate': float('nan')})")


HOSTILE = "a\x1b[2Jb\x07c\x7fd\x9b1me\u202ef\rg\th"


@pytest.mark.parametrize("written", ["print_verbatim(console, text)", "print_lines(console, text)", "table"])
def test_no_text_steers_the_terminal(written: str) -> None:
    if written == "table":
        written = "drawn = table(text, title=text); drawn.add_row(text); console.print(drawn)"
    program = f"""
from dspark.commands.rendering import print_lines, print_verbatim, stdout_console, table
text, console = {HOSTILE!r}, stdout_console()
{written}
"""
    shown = run(program, LANG="C")
    assert {character for character in shown if not character.isprintable()} == {"\n"}
    assert "a?[2Jb?c?d?1me?f" in shown


def test_markdown_keeps_its_lines() -> None:
    program = "from dspark.commands.rendering import *; print_verbatim(stdout_console(), 'a\\nb')"
    assert run(program) == "a\nb\n"


@pytest.mark.parametrize("columns", ["0", "19", "²", "1e2", "9" * 5000, "٢٠٠"])
def test_columns_that_are_no_width_are_as_if_unset(columns: str) -> None:
    assert run(TABLE, LANG="C", COLUMNS=columns, LINES=columns) == run(TABLE, LANG="C")


def test_twenty_columns_are_a_width() -> None:
    assert max(map(len, run(TABLE, LANG="C", COLUMNS="20").splitlines())) <= 20
