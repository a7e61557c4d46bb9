"""Plots in characters and in files."""

from pathlib import Path

import pytest

from dspark.commands import plotting
from dspark.errors import StorageError, UsageError
from dspark.tuning.plots import Plot, Series, curves_plot

LINE = Plot("costs", "rows", "ms", (Series("verify", ((1.0, 10.0), (16.0, 40.0))), Series("now", ((8.0, 20.0),), True)))


def test_a_line_runs_from_corner_to_corner() -> None:
    found = plotting.lines(LINE, 60, height=5)
    assert found[0] == "costs: ms over rows"
    assert found[1].startswith("       40 |") and found[1].endswith("*")
    assert found[5].startswith("        0 |")
    assert "*" in found[4] and "o" in "".join(found[1:6])
    assert found[7].split() == ["1", "16"]
    assert [line.strip() for line in found[8:]] == ["* verify", "o now"]
    assert all(len(line) <= 60 and line.isascii() for line in found)


def test_logarithmic_axes_and_single_points() -> None:
    one = Plot("roof", "x", "y", (Series("point", ((5.0, 7.0),), marks=True),), log=True)
    assert any("*" in line for line in plotting.lines(one, 40)[1:-1])


def test_nothing_to_draw_is_said() -> None:
    assert plotting.lines(curves_plot({}, title="costs", x_label="rows", y_label="ms"), 60) == [
        "costs: nothing to draw"
    ]


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"mlx-dspark\[plot\]"):
        plotting.check_target(str(tmp_path / "a.png"))
    plotting.check_target("-")  # the terminal takes no library


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(StorageError, match="not a folder"):
        plotting.check_target(str(tmp_path / "no" / "a.png"))


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_files_of_each_kind(tmp_path: Path, ending: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"a.{ending}"
    plotting.write([LINE, LINE], path)
    assert path.read_bytes().startswith(start)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "a.png").mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        plotting.write([LINE], tmp_path / "a.png")
