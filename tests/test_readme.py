"""The README's examples run, and its tables are those of the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = [
    example
    for example in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    if "127.0.0.1" not in example  # those that need a server: tests/clients/test_readme_serving.py
]


def test_the_tables_are_up_to_date():
    render = [sys.executable, str(ROOT / "results" / "render.py"), "--check"]
    done = subprocess.run(render, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.real
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_run(number, capsys, monkeypatch):
    example = EXAMPLES[number].replace('LoadOptions(model="demo"', 'LoadOptions(model="demo", precision="fp32"')
    example = example.replace("max_tokens=64", "max_tokens=12")
    exec(compile(example, f"README example {number}", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.strip()
