"""A settings file as people and others write it."""

import pytest

from dspark.errors import StorageError, UsageError
from dspark.settings import resolve
from dspark.settings.file import MOST_BYTES


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "model:\n", "model: {drafter: null}\n", "\ufeffmodel: {}\n"])
def test_what_says_nothing_gives_the_defaults(text, write, caplog):
    write(text)
    assert resolve().given == {name: one for name, one in resolve().given.items() if one.origin == "default"}
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: {kvbits: 4}", "model has no kvbits; did you mean model.kv_bits?"),
        ("model: {port: 4}", "model has no port, which belongs under server"),
        ("model: {maxdraft: 4}", "model has no maxdraft; did you mean speculation.max_draft?"),
        ("modle: {kv_bits: 4}", "there is no section modle; did you mean model?"),
        ("kv_bits: 4", "kv_bits stands outside its section: write it under model"),
        ("kvbits: 4", "there is no section kvbits; did you mean model.kv_bits?"),
        ("1: 2", "there is no section 1; It is passed over"),
        ("model: {<<: {kv_bits: 4}}", "model has no <<"),
    ],
)
def test_a_stray_key_is_named_with_its_line_and_the_nearest_right_one(text, said, write, caplog):
    write("# first line\n" + text)
    assert resolve().model.kv_bits == 0
    assert f"~/.mlx-dspark/settings.yaml line 2: {said}" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: {kv_bits: 4}\nmodel: {kv_bits: 8}", r"line 2: 'model' stands in line 1 already"),
        ("model:\n  kv_bits: 4\n  kv_bits: 8", r"line 3: 'kv_bits' stands in line 2 already"),
        ("model: {stray: 4, stray: 8}", r"line 1: 'stray' stands in line 1 already"),
        ("model: 7", "model must hold keys"),
        ("[model]", "must hold sections"),
        ("text", "must hold sections"),
        ("model: {kv_bits: 4", "line 1: not YAML"),
        ("model: !!python/object/apply:os.system ['touch pwned']", "line 1: aliases and tags"),
        ("[" * 30_000, "not YAML"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ("#" * (MOST_BYTES + 1), "larger than 64 KiB"),
    ],
)
def test_o9_what_cannot_be_meant_is_refused_in_one_line(text, said, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(text)
    with pytest.raises(UsageError, match=said) as raised:
        resolve()
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300
    assert not (tmp_path / "pwned").exists()


def test_o9_laughs_by_the_billion_cost_nothing(write):
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    write("server:\n" + "".join(f"  {line}\n" for line in [*lines, "host: *a29"]))
    with pytest.raises(UsageError, match="aliases and tags are not allowed"):
        resolve()


def test_a_folder_or_a_pipe_in_its_place_is_said(home):
    (home / ".mlx-dspark" / "settings.yaml").mkdir()
    with pytest.raises(StorageError, match="is no regular file"):
        resolve()
