"""`mlx-dspark calibrate` as a user types it: when it measures, what it refuses, and what a profile looks like."""

import io
import json

import pytest
from profiled import made
from rich.console import Console
from tiny import write_head, write_llama

from dspark.calibrating.scope import Question, Scope
from dspark.commands.app import run
from dspark.commands.calibrate import UNSURE, _print_profile
from dspark.engine import Engine, LoadOptions
from dspark.errors import DSparkError
from dspark.tuning import profiles

BRIEF = Scope(
    depths=(96,), timing_s=0.01, repeats=3, answers_per_class=1, answer_tokens=16, quick=True, bandwidth=False
)


class Measuring(DSparkError):
    """The engine was asked to measure."""


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A pair, and a home folder with a clean profile of it at depths 64 and 96."""
    root = tmp_path_factory.mktemp("calibrated")
    pair = str(write_llama(root / "target")), str(write_head(root / "head"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLX_DSPARK_HOME", str(root / "home"))
        engine = Engine()
        engine.load(LoadOptions(*pair))
        profile = engine.calibrate([Question("chat", engine.encode_chat("abcab"))], BRIEF)
        clean = profile.measured.model_copy(update={"quick": False, "disturbances": []})
        profiles.write(profile.model_copy(update={"measured": clean}))
    return root / "home", pair


@pytest.fixture
def calibrate(calibrated, monkeypatch, capsys):
    """Run the command on that pair; returns the exit code, stdout and stderr. Nothing is measured."""
    home, (target, head) = calibrated
    monkeypatch.setenv("MLX_DSPARK_HOME", str(home))

    def measuring(*arguments):
        raise Measuring("measuring")

    monkeypatch.setattr(Engine, "calibrate", measuring)

    def start(*flags, pair=("--model", target, "--drafter", head)):
        capsys.readouterr()
        code = run(["calibrate", *pair, *flags])
        said = capsys.readouterr()
        return code, said.out, " ".join(said.err.split())

    return start


def test_a_clean_profile_is_shown_and_not_measured_again(calibrate):
    code, out, said = calibrate("--json")
    assert code == 0 and json.loads(out)["measured"]["quick"] is False
    assert "calibrated already" in said and "--force measures again" in said
    assert calibrate("--depths", "96")[0] == 0


def test_b8_depths_that_are_missing_are_measured_and_a_failure_leaves_the_profile_that_was(calibrate):
    before = {path: path.read_text() for path in profiles.folder().iterdir()}
    code, out, said = calibrate("--depths", "96,128")
    assert (code, out) == (1, "") and "but not at 128 tokens of context: measuring again" in said
    assert {path: path.read_text() for path in profiles.folder().iterdir()} == before


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--depths", "64,96,10k"), "--depths 64,10240: not possible with"),
        (("--depths", "0"), "--depths '0' is no number of tokens; write 1, 4096 or 4k"),
        (("--depths", "1k,"), "--depths '' is no number of tokens"),
        (("--depths", "-5"), "--depths '-5' is no number of tokens"),
        (("--quick", "--depths", "96"), "--quick measures at no depth"),
        (("--show", "--depths", "96"), "--depths does nothing beside --show"),
        (("--check", "--quick"), "--quick does nothing beside --check"),
        (("--show", "--force"), "exclude each other"),
    ],
)
def test_what_would_be_ignored_is_refused_in_one_line(calibrate, flags, said):
    code, out, told = calibrate(*flags)
    assert (code, out) == (2, "") and said in told


def test_p3_what_to_type_next_names_the_same_pair(calibrate, calibrated):
    target = calibrated[1][0]
    code, _, said = calibrate("--show", pair=("--model", target, "--drafter", "none"))
    assert code == 1 and f"run mlx-dspark calibrate --model {target} --drafter none" in said


def _shown(profile, width):
    console = Console(file=io.StringIO(), width=width)
    _print_profile(console, profile, None)
    return console.file.getvalue()


def test_a_gain_that_may_be_chance_is_shown_as_one():
    """Plain decoding at 1.00x beside a mode auto of 2.86x looks like a contradiction."""
    profile = made(quick=True)
    one = profile.derived.classes["chat"]
    unsure = {
        "mode": "baseline",
        "cap": 0,
        "speedup": 1.73,
        "low": 0.83,
        "tried": "drafter cap=4 lookup=on confidence=0",
    }
    sure = {"mode": "drafter", "cap": 3, "speedup": 1.5, "low": 1.2, "tried": "drafter cap=3 lookup=on confidence=0"}
    classes = {"chat": one.model_copy(update=unsure), "code": one.model_copy(update=sure)}
    derived = profile.derived.model_copy(update={"classes": classes, "auto_speedup": {"chat": 2.863, "code": 1.4}})
    text = _shown(profile.model_copy(update={"derived": derived}), 100)
    assert (
        "chat  plain; drafter cap 4?  0.83-1.73x  2.86x" in text and "code  drafter cap 3               1.50x" in text
    )
    assert UNSURE in text and "measured quickly" in text
    derived = derived.model_copy(update={"classes": {"code": classes["code"]}})
    assert UNSURE not in _shown(profile.model_copy(update={"derived": derived}), 100)


def test_what_was_derived_is_said_in_full():
    chosen = {"mode": "drafter", "cap": 4, "lookup": False, "confidence": 0.3, "drafter_bits": 4}
    auto = {"auto_cap": "auto", "auto_lookup": True, "auto_confidence": 0.0}
    profile = made()
    text = _shown(profile.model_copy(update={"derived": profile.derived.model_copy(update=chosen | auto)}), 100)
    assert "the best fixed setting: cap 4, lookup off, confidence threshold 0.3" in text
    assert "mode auto stands for the drafter, cap auto, lookup on, no confidence threshold" in text
    assert "the drafter is fastest with 4 bits a weight" in text


@pytest.mark.parametrize("width", [20, 34, 60])
def test_p10_no_figure_is_cut_on_a_narrow_terminal(width):
    profile = made()
    text = _shown(profile, width)
    for level in profile.curves.levels:
        for ms in level.verify_ms.values():
            assert f"{ms:.1f} ms" in text
    for speedup in profile.derived.auto_speedup.values():
        assert f"{speedup:.2f}x" in text


def test_a_remedy_is_a_command_that_can_be_given():
    from dspark.commands.calibrate import _words

    assert _words("--sdpa-split", False) == ("--no-sdpa-split",) and _words("--sdpa-split", True) == ("--sdpa-split",)
    assert _words("--kv-bits", 4) == ("--kv-bits", "4")
