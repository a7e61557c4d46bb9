"""Acceptance 7: each example of the README's section on serving, as pasted, against a fresh server."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from serveprocess import PROGRAM, README

pytestmark = pytest.mark.real
SECTION = re.search(r"^## Serving\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)[1]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", SECTION, re.DOTALL)
LINES = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
CURLS = [line for line in LINES if line.startswith("curl ")]
LAUNCHES = [line for line in LINES if line.startswith("mlx-dspark launch ")]
PYTHONS = [block for kind, block in BLOCKS if kind == "python"]


def at(example, served):
    """The example, for the port that was free."""
    return example.replace("http://127.0.0.1:8080", served.url)


def test_every_example_is_of_a_kind_that_is_tried():
    assert {kind for kind, _ in BLOCKS} == {"sh", "python"}
    assert [line for line in LINES if line not in CURLS + LAUNCHES] == ["mlx-dspark serve"], "see the fixture demo"


def test_the_examples_work_as_pasted(demo, tmp_path, capsys):
    """All in one, as one server is enough for them."""
    for line in CURLS:
        curled(at(line, demo))
    for example in PYTHONS:
        executed(at(example, demo), capsys)
    for line in LAUNCHES:
        launched(line, demo, tmp_path)


def curled(line):
    if shutil.which("curl") is None:
        return
    line = f"{line} --fail --silent --show-error --noproxy '*'"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r'"(status":"ok|content": ?"\w|text": ?"\w)', done.stdout), f"{line}: {done.stdout}"


def executed(example, capsys):
    package = re.search(r"^from (\w+) import", example)[1]
    pytest.importorskip(package, reason=f"the {package} SDK is not installed (pip install -e '.[test]')")
    exec(compile(example, f"README example with {package}", "exec"), {"__name__": "example"})
    assert len(capsys.readouterr().out.split()) > 3


def launched(line, demo, folder):
    """With a stand-in for the client, which the README's own words would keep busy for long."""
    client = re.search(r"launch (\w+)", line)[1]
    tells = 'import os, sys\nprint(os.environ["ANTHROPIC_BASE_URL"], sys.argv)'
    (folder / client).write_text(f"#!{sys.executable}\n{tells}\n")
    (folder / "mlx-dspark").write_text(f"#!/bin/sh\nexec {PROGRAM[0]} -c '{PROGRAM[2]}' \"$@\"\n")
    for name in (client, "mlx-dspark"):
        (folder / name).chmod(0o755)
    port = demo.url.rpartition(":")[2]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "MLX_DSPARK_PORT": port}
    done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert demo.url in done.stdout and "What does this repository do?" in done.stdout
