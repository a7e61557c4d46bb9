"""What is read of a YAML file, and what of it is refused: one phrase with its line, whatever stands there."""

import os

import pytest

from dspark.yamlfile import Malformed, parse, read


def test_mappings_know_the_lines_of_their_keys():
    found = parse("a: 1\n\nb:\n  c: [x]\n  << : 2\n")
    assert found == {"a": 1, "b": {"c": ["x"], "<<": 2}}
    assert found.lines == {"a": 1, "b": 3} and found["b"].lines == {"c": 4, "<<": 5}
    assert parse("# nothing\n") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\na: 2", "line 2: 'a' stands in line 1 already; leave one of them"),
        ("a:\n - b: 1\n   b: 2", "line 3: 'b' stands in line 2 already; leave one of them"),
        ("1: 2\n0x1: 3", "line 2: 1 stands in line 1 already; leave one of them"),
        ("yes: 2\ntrue: 3", "line 2: True stands in line 1 already; leave one of them"),
        ("a: &x [1]\nb: *x", "line 2: aliases and tags are not allowed"),
        ("a: 1\nb: !!timestamp x", "line 2: aliases and tags are not allowed"),
        ("!!map [1]", "line 1: aliases and tags are not allowed"),
        ("? [1]\n: 2", "line 1: a key must be a word or a number"),
        ("a: 2020-13-45", "not YAML (month must be in 1..12)"),
        ("a: 1\n---\nb: 1", "line 2: not YAML (but found another document)"),
        ("[" * 30_000, "not YAML (too deep)"),
        ("\x00", "not YAML (special characters are not allowed)"),
    ],
)
def test_what_cannot_be_meant_is_one_phrase_with_its_line(text, said):
    with pytest.raises(Malformed) as caught:
        parse(text)
    assert str(caught.value) == said


def test_no_more_is_read_than_allowed_and_no_pipe_waited_for(tmp_path):
    (tmp_path / "large").write_text("# " + "x" * 2048)
    (tmp_path / "latin").write_bytes(b"a: caf\xe9")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Malformed, match="larger than 2 KiB"):
        read(tmp_path / "large", 2048)
    with pytest.raises(Malformed, match=r"not UTF-8 \(byte 6\)"):
        read(tmp_path / "latin", 2048)
    for other in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="no regular file"):
            read(other, 2048)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none", 2048)
