"""Calibrating tiny pairs: what is measured, what the engine takes from it, and what spoils it."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tiny import write_head, write_llama

from dspark.calibrating import calibration
from dspark.calibrating.calibration import Subject, place
from dspark.calibrating.scope import Question, Scope
from dspark.decoding.events import Finished
from dspark.decoding.lookup import LookupIndex
from dspark.decoding.request import Request, SpeculationOptions
from dspark.drafters.along import Tried
from dspark.engine import Engine, LoadOptions
from dspark.errors import NotLoaded, UsageError
from dspark.machine import Conditions
from dspark.tuning import profiles
from dspark.tuning.pilot import AutoPilot
from dspark.tuning.timing import Timing

SCOPE = Scope(
    depths=(96, 128), timing_s=0.02, repeats=3, prefill_s=9.0, answers_per_class=1, answer_tokens=24, bandwidth=False
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    return LoadOptions(str(write_llama(root / "llama")), str(write_head(root / "head")))


def questions(engine):
    return [Question("chat", engine.encode_chat("abcab")), Question("copy", engine.encode_chat("xyzxyzxyz"))]


@pytest.fixture(scope="module")
def calibrated(pair, tmp_path_factory):
    """An engine that has calibrated the pair, the profile, which is written nowhere, and the stages that it told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLX_DSPARK_HOME", str(tmp_path_factory.mktemp("home")))
        engine, stages = Engine(), []
        engine.load(pair)
        profile = engine.calibrate(questions(engine), replace(SCOPE, bandwidth=True), stages.append)
    return engine, profile, stages


def test_every_curve_is_there_and_the_engine_goes_by_them(calibrated):
    engine, profile, stages = calibrated
    levels = profile.curves.levels
    assert [level.depth for level in levels] == [64, 96, 128]
    assert list(levels[0].verify_ms) == [1, 2, 3, 4, 5, 6, 16, 32] and list(levels[0].draft_ms) == [1, 2, 3, 4, 5]
    assert list(levels[1].verify_ms) == [1, 3, 8] and list(levels[1].draft_ms) == [5]
    assert profile.curves.bandwidth is not None and profile.curves.bandwidth.gb_s > 0
    assert len(profile.curves.prefill) == 3 and profile.curves.ahead_ms > 0 and profile.curves.lookup_ms > 0
    assert set(profile.derived.classes) == {"chat", "copy"} and set(profile.derived.depths) == {96, 128}
    assert 0 <= profile.derived.cap <= 32 and profile.derived.reason
    names = [stage.name for stage in stages]
    assert list(dict.fromkeys(names)) == ["costs of a round", "prefill", "depth", "answers", "bandwidth", "derivation"]
    assert all(0 <= stage.share <= 1 and stage.left_s >= 0 for stage in stages)
    assert engine.profile is profile and engine.costs().source.startswith("calibrated on")


def test_a_written_profile_is_found_at_the_next_load_and_by_no_other_pair(pair, calibrated):
    engine, profile, _ = calibrated
    path = profiles.write(profile)
    again = Engine()
    loaded = again.load(pair)
    assert loaded.profile == str(path) and again.profile.derived == engine.profile.derived
    assert loaded.default.mode == engine.loaded.default.mode
    other = Engine()
    assert other.load(LoadOptions(pair.model, pair.drafter, kv_bits=None, drafter_window=7)).profile is None
    assert other.load(LoadOptions(pair.model, "none")).profile is None
    assert other.load(LoadOptions(pair.model, pair.drafter, profile="none")).profile is None


def with_derived(profile, **changes):
    return profile.model_copy(update={"derived": profile.derived.model_copy(update=changes)})


@pytest.mark.parametrize(
    ("derived", "expected"),
    [
        ({"mode": "baseline", "auto_cap": 0}, ("baseline", 0)),
        ({"mode": "lookup", "auto_cap": "auto"}, ("lookup", "auto")),
        ({"mode": "drafter", "auto_cap": 3, "auto_confidence": 0.3}, ("dspark", 3)),
        ({"mode": "drafter", "auto_cap": "auto", "auto_confidence": 0.0}, ("dspark", "auto")),
    ],
)
def test_mode_auto_is_what_the_profile_found_best_and_a_named_mode_is_not(pair, calibrated, derived, expected):
    """B20: a confidence threshold found for this pair holds in its own mode only."""
    profiles.write(with_derived(calibrated[1], **derived))
    engine = Engine()
    engine.load(pair)
    found = engine.resolve(SpeculationOptions())
    assert (found.mode, found.cap) == expected
    if found.mode == "dspark":
        assert found.confidence == derived["auto_confidence"]
    assert engine.resolve(SpeculationOptions("lookup")).mode == "lookup"
    assert engine.resolve(SpeculationOptions("dspark", cap=2, confidence=0.0)).cap == 2
    prompt = engine.encode_chat("ab")
    plain = list(engine.generate(Request(prompt, 12, speculation=SpeculationOptions("baseline"))))
    auto = list(engine.generate(Request(prompt, 12)))
    assert isinstance(auto[-1], Finished) and auto[-1].tokens == plain[-1].tokens


@pytest.mark.parametrize(("mode", "cap"), [("drafter", 6), ("lookup", 33)])
def test_b8_a_profile_that_asks_for_more_than_the_pair_can_is_named_and_not_used(pair, calibrated, mode, cap):
    profiles.write(with_derived(calibrated[1], mode=mode, auto_cap=cap))
    engine = Engine()
    loaded = engine.load(pair)
    assert engine.profile is None and loaded.profile is None
    assert any("cannot do" in note and "mlx-dspark calibrate" in note for note in loaded.notes)
    assert engine.resolve(SpeculationOptions()).cap == "auto"


def test_the_controller_starts_from_what_was_recorded(calibrated):
    engine, *_ = calibrated
    decoding = engine.start(Request(engine.encode_chat("ab"), 4, speculation=SpeculationOptions("dspark", "auto")))
    assert isinstance(decoding._pilot, AutoPilot)
    assert engine.profile.prior().position[0].offered > 0


def test_a_model_without_a_drafter_is_calibrated_for_lookup(tmp_path):
    engine = Engine()
    engine.load(LoadOptions(str(write_llama(tmp_path / "llama")), "none"))
    profile = engine.calibrate(questions(engine), SCOPE)
    assert profile.key.drafter is None and not profile.curves.levels[0].draft_ms
    assert profile.derived.mode in ("baseline", "lookup") and profile.derived.drafter_bits is None


def test_nothing_is_calibrated_where_there_is_nothing(pair):
    with pytest.raises(NotLoaded):
        Engine().calibrate([])
    engine = Engine()
    engine.load(pair)
    engine.plug(engine._pair.drafter)
    with pytest.raises(UsageError, match="plugged-in"):
        engine.calibrate(questions(engine), SCOPE)


def test_a_busy_neighbour_is_seen_and_marks_the_profile(pair):
    """A loop on another core: the profile says so, and the next calibration replaces it without being forced."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        engine = Engine()
        engine.load(pair)
        brief = Scope(
            depths=(), timing_s=0.1, repeats=3, answers_per_class=1, answer_tokens=24, quick=True, bandwidth=False
        )
        profile = engine.calibrate(questions(engine), brief)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert any("other programs used" in sentence for sentence in profile.measured.disturbances)
    assert not profile.clean


@pytest.mark.parametrize(("then", "drift"), [([10.0], 0.0), ([14.0, 10.5], 0.05), ([14.0, 13.0, 15.0, 10.0], 0.5)])
def test_a_slow_moment_at_the_end_is_no_drift_and_one_that_stays_is(then, drift, monkeypatch):
    times = iter(then)
    monkeypatch.setattr(calibration, "Bench", lambda *_: SimpleNamespace(plain=lambda: Timing(next(times), 0.0, 5)))
    assert calibration._drift(Subject(None, None, False), None, Timing(10.0, 0.0, 5)) == pytest.approx(drift)


def test_drift_is_a_disturbance(pair):
    from dspark.calibrating.calibration import MOST_DRIFT, Calibration
    from dspark.tuning.acceptance import Prior
    from dspark.tuning.curves import Curves

    def disturbed(drift):
        return Calibration(Curves((), drift=drift), (), Prior(), None, None, Conditions(), 1.0).disturbances

    assert disturbed(0.0) == () and disturbed(None) == () and disturbed(MOST_DRIFT * 0.9) == ()
    assert "heating up" in disturbed(0.2)[0] and "-30%" in disturbed(-0.3)[0]


def test_places_hold_what_could_be_proposed():
    index = LookupIndex([5, 6, 7, 8, 5, 6, 7])
    found = place(Tried(2, (0.9, 0.8)), index, [8, 5, 9])
    assert found.suffix == 3 and found.offered == 3 and found.matched == 2
    assert found.drafted == 2 and found.confidences == (0.9, 0.8)
    assert place(None, LookupIndex([1, 2, 3]), [4]).offered == 0
