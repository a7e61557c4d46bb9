"""Profiles as files: what is written is what is read, and nothing that is broken or of another machine is used."""

import multiprocessing
import os
import re
import signal
import time
from dataclasses import replace

import pytest
from profiled import KEY, made

from dspark.errors import ProfileError, StorageError, UsageError
from dspark.tuning import profiles
from dspark.tuning.key import file_name
from dspark.tuning.profile import MOST_BYTES, from_document, to_yaml
from dspark.yamlfile import parse


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("seed", range(10))
def test_what_is_read_is_what_was_written(seed):
    profile = made(seed=seed, disturbances=["busy: öä"])
    back = from_document(parse(to_yaml(profile)))
    assert back.key == profile.key and back.measured == profile.measured and back.acceptance == profile.acceptance
    assert back.derived.cap == profile.derived.cap and back.derived.reason == profile.derived.reason
    for ours, theirs in zip(profile.costs().verify, back.costs().verify, strict=True):
        assert theirs == (ours[0], pytest.approx(ours[1], rel=1e-3))
    assert back.costs().deeper[0].tokens == 4096 and back.costs().ahead_ms == pytest.approx(
        profile.costs().ahead_ms, rel=1e-3
    )
    assert back.prior() == profile.prior()


def test_a_person_can_read_it():
    text = to_yaml(made())
    assert text.startswith("# Calibration of one pair on one machine")
    assert all(f"\n{section}:\n" in text for section in ("key", "measured", "curves", "acceptance", "derived"))
    assert text.count("\n# ") == 5 + 1
    assert "    verify_ms: {1: " in text and max(map(len, text.splitlines())) < 140


def test_writer_and_reader_meet_at_one_key(home):
    path = profiles.write(made())
    assert path.parent == home / "profiles" and path.name.startswith("model-4b-apple-m4-pro-")
    found = profiles.find("org/Model-4B", KEY)
    assert found.profile is not None and found.path == path and not found.notes
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".lock", path.name]


@pytest.mark.parametrize(
    "change",
    [
        {"mlx": "0.32.5"},
        {"mlx_lm": "0.32.3"},
        {"target": "cc" * 8},
        {"drafter": "cc" * 8},
        {"chip": "Apple M1"},
        {"gpu_cores": 16},
        {"memory_gb": 24},
        {"blas": "libblas.so.3"},
        {"switches": (("drafter_bits", "auto"), ("kv_bits", "8"))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_b2_another_version_quantization_or_machine_is_a_miss_and_borrows_nothing(change):
    profiles.write(made())
    assert profiles.find("org/Model-4B", replace(KEY, **change)).profile is None


def test_b8_a_profile_of_another_machine_is_named_and_not_used(home):
    """The explicit path, and a file that was copied under this machine's name."""
    elsewhere = replace(KEY, chip="Apple M1", gpu_cores=8)
    written = profiles.write(made(elsewhere))
    found = profiles.find("org/Model-4B", KEY, str(written))
    assert found.profile is None and "another chip and gpu_cores" in found.notes[0]
    written.rename(home / "profiles" / file_name("org/Model-4B", KEY))
    assert "another chip" in profiles.find("org/Model-4B", KEY).notes[0]


def _with(**changes):
    text = to_yaml(made())
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    return text


BROKEN = {
    "empty": ("", "is empty"),
    "truncated": (to_yaml(made())[:700], ""),
    "no mapping": ("- 1\n- 2\n", "holds no profile"),
    "null curves": (to_yaml(made()).split("\ncurves:")[0] + "\ncurves: null\n", "wrong value at"),
    "nan": (_with(a=("lookup_ms: 0.003", "lookup_ms: .nan")), "curves.lookup_ms"),
    "a width beyond all": (_with(a=("verify_ms: {1: ", f"verify_ms: {{{10**400}: ")), "verify_ms"),
    "a host that never was": (_with(a=("host: null", "host: {wait_ms: .nan, overlap_ms: 0.0}")), "host.wait_ms"),
    "negative": (_with(a=("verify_ms: {1: ", "verify_ms: {1: -")), "verify_ms"),
    "text for a number": (_with(a=("seconds: 50.0", "seconds: '50'")), "measured.seconds"),
    "of the future": (_with(a=("schema: 1", "schema: 9")), "newer mlx-dspark (schema 9"),
    "of no schema": (_with(a=("schema: 1", "schema: x")), "unknown schema 'x'"),
    "python": ("schema: 1\nkey: !!python/object/apply:os.system ['touch /tmp/owned']\n", "line 2: aliases and tags"),
    "bomb": ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nschema: 1\n", "aliases and tags are not allowed"),
    "nested": ("[" * 5000, "not YAML (too deep)"),
    "huge": ("#" * (MOST_BYTES + 1), "larger than"),
    "a key twice": (to_yaml(made()) + "measured: {}\n", "'measured' stands in line"),
    "a width twice": (_with(a=("verify_ms: {1: ", "verify_ms: {1: 1.0, 1: ")), "1 stands in line"),
    "no row 1": (_with(a=("verify_ms: {1: ", "verify_ms: {33: ")), "no entry for one row"),
}


BROKEN |= {
    "overflowing": (_with(a=("lookup_ms: 0.003", "lookup_ms: 1.0e+308")), "curves.lookup_ms"),
    "one depth twice": (_with(a=("depth: 4096", "depth: 64")), "two levels have the same depth"),
    "more accepted than offered": (_with(a=("position: [[", "position: [[9, 8], [")), "more accepted than offered"),
    "a drafter without costs": (_with(a=("draft_ms: {7: 9.0}", "draft_ms: {}")), "curves have no draft_ms"),
    "a drafter from nowhere": (_with(a=("drafter: " + "bb" * 8, "drafter: null")), "though there is none"),
    "a cap of nothing": (re.sub("auto_cap: .*", "auto_cap: 0", to_yaml(made())), "auto_cap does not go with"),
    "a mode of another kind": (
        re.sub("      mode: .*", "      mode: quantum", to_yaml(made())),
        "derived.classes.chat.mode",
    ),
    "odd bits": (_with(a=("drafter_bits: 4\n  prefill", "drafter_bits: -1\n  prefill")), "derived.drafter_bits"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_b8_o9_what_is_broken_is_named_and_passed_over(kind, home):
    text, message = BROKEN[kind]
    path = home / "profiles" / file_name("org/Model-4B", KEY)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        profiles.read(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value) and "\n" not in str(caught.value)
    found = profiles.find("org/Model-4B", KEY)
    assert found.profile is None and "measured at load" in found.notes[0]
    profiles.write(made())
    assert profiles.find("org/Model-4B", KEY).profile is not None, "the next calibration mends it"


def test_binary_and_unreadable_files(home):
    path = home / "profile.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="UTF-8"):
        profiles.read(path)
    with pytest.raises(ProfileError, match="cannot be read"):
        profiles.read(home)


def test_a_disturbed_profile_is_used_and_says_so():
    profiles.write(made(disturbances=["other programs used 50% of the processor"]))
    found = profiles.find("org/Model-4B", KEY)
    assert found.profile is not None and not found.profile.clean and "other programs" in found.notes[0]
    assert made().clean and not made(quick=True).clean and not made(kind="prior").clean


def test_a_prior_lends_its_acceptance_and_never_its_times(home):
    path = home / "prior.yaml"
    path.write_text(to_yaml(made(kind="prior")))
    found = profiles.find("org/Model-4B", KEY, str(path))
    assert found.profile is None and found.prior is not None and "hint" in found.notes[0]


@pytest.mark.parametrize("field", ["target", "drafter"])
def test_a_prior_of_another_pair_lends_nothing(home, field):
    path = home / "prior.yaml"
    path.write_text(to_yaml(made(kind="prior")))
    found = profiles.find("org/Model-4B", replace(KEY, **{field: "cc" * 8}), str(path))
    assert found.prior is None and f"of another {field}" in found.notes[0]


def test_a_folder_is_no_profile_and_is_not_said_to_be_missing(home):
    with pytest.raises(UsageError, match="is no file"):
        profiles.find("org/Model-4B", KEY, str(home))


def test_an_explicit_path_must_exist_and_none_is_none():
    with pytest.raises(UsageError, match="does not exist"):
        profiles.find("m", KEY, "/nowhere/profile.yaml")
    profiles.write(made())
    assert profiles.find("org/Model-4B", KEY, "none").profile is None


def test_a_folder_that_refuses_is_named(home):
    (home / "profiles").write_text("a file stands here")
    with pytest.raises(StorageError, match="MLX_DSPARK_HOME"):
        profiles.write(made())


def test_a_folder_that_refuses_is_named_before_anything_is_measured(home):
    profiles.prepare()
    assert list((home / "profiles").iterdir()) == []
    (home / "profiles").rmdir()
    (home / "profiles").symlink_to("/nowhere/at/all")
    with pytest.raises(StorageError, match="MLX_DSPARK_HOME"):
        profiles.prepare()


def test_a_pipe_among_the_profiles_is_not_waited_for(home):
    path = home / "profiles" / "pipe.yaml"
    path.parent.mkdir()
    os.mkfifo(path)
    assert [str(error) for _, error in profiles.all_of()] == [
        f"{path} cannot be read (it is no regular file): check what it is and its permissions"
    ]


def test_a_path_that_cannot_be_looked_at_is_named():
    assert "cannot be read (File name too long)" in profiles.find("m", KEY, "a" * 5000).notes[0]


def _write_for_ever(ready):
    for seed in range(10**6):
        profiles.write(made(seed=seed % 3))
        ready.set()


def test_b8_killed_at_any_moment_and_written_by_two_at_once_it_stays_whole(home):
    context = multiprocessing.get_context("spawn")
    path = None
    for moment in (0.0, 0.003, 0.01, 0.02):
        ready = context.Event()
        writers = [context.Process(target=_write_for_ever, args=(ready,)) for _ in range(2)]
        for writer in writers:
            writer.start()
        assert ready.wait(60)
        time.sleep(moment)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
        path = profiles.folder() / file_name("org/Model-4B", KEY)
        profiles.read(path)
    assert profiles.write(made()) == path, "a lock dies with its process"


def test_all_of_a_folder_are_told_the_broken_ones_too(home):
    profiles.write(made())
    (home / "profiles" / "broken.yaml").write_text("[")
    found = {path.name: profile for path, profile in profiles.all_of()}
    assert isinstance(found["broken.yaml"], ProfileError) and len(found) == 2
    assert profiles.of_target("aa" * 8).measured.model == "org/Model-4B" and profiles.of_target("zz") is None


def test_what_it_chose_is_where_the_next_calibration_starts():
    profile = made()
    chosen = profile.settings()
    assert set(chosen) == {"", "chat", "code"} and chosen[""].cap == profile.derived.cap
    assert all(setting.drafter or setting.cap == 0 for setting in chosen.values())
