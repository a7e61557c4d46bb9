from collections import Counter
from pathlib import Path

import pytest

from dspark.errors import UsageError
from dspark.racing.prompts import Prompt, builtin, gather, read_file


@pytest.fixture
def write(tmp_path: Path):
    def write(content: str | bytes, name: str = "prompts.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_the_built_in_set_has_four_classes_of_three() -> None:
    assert Counter(prompt.klass for prompt in builtin()) == {"chat": 3, "code": 3, "math": 3, "copy": 3}
    assert len({prompt.text for prompt in builtin()}) == 12


def test_json_lines_give_prompt_and_class(write) -> None:
    path = write('{"prompt": "a\\nb", "class": "math", "id": 7}\n\n{"prompt": "c"}\n', "set.jsonl")
    assert read_file(path) == [Prompt("a\nb", "math"), Prompt("c", "own")]


def test_json_lines_are_known_by_their_brace_and_may_start_with_a_byte_order_mark(write) -> None:
    assert read_file(write(b'\xef\xbb\xbf{"prompt": "c"}', "set.txt")) == [Prompt("c", "own")]


def test_a_line_separator_inside_a_json_string_ends_no_line(write) -> None:
    assert read_file(write('{"prompt": "a\u2028b"}', "set.jsonl")) == [Prompt("a\u2028b", "own")]


def test_text_is_one_prompt_a_line(write) -> None:
    assert read_file(write("first\r\n\n  second  \n")) == [Prompt("first", "own"), Prompt("second", "own")]


def test_text_lines_end_at_a_newline_only(write) -> None:
    path = write("one\x0ctwo\u2028three\x85four\x1cfive\nsix")
    assert [prompt.text for prompt in read_file(path)] == ["one\x0ctwo\u2028three\x85four\x1cfive", "six"]


@pytest.mark.parametrize(
    "klass", ["", "two words", "a\\u001b[2J", "a\\u009b", "a\\u007f", "a|b", "x" * 33, "\\ud800", "a\\n"]
)
def test_a_class_is_a_short_word(write, klass: str) -> None:
    with pytest.raises(UsageError, match="line 1: `class` must be a short word"):
        read_file(write(f'{{"prompt": "a", "class": "{klass}"}}', "p.jsonl"))
    assert read_file(write('{"prompt": "a", "class": "très-long_2"}', "q.jsonl"))[0].klass == "très-long_2"


@pytest.mark.parametrize(
    ("content", "name", "named"),
    [
        ("", "p.txt", "holds no prompt"),
        ("\n \n", "p.jsonl", "holds no prompt"),
        ('{"prompt": "a"}\n{"prompt": "b"', "p.jsonl", "line 2: not JSON"),
        ('{"prompt": "a"}\n\nb', "p.txt", "line 3: not JSON"),
        ("[1]", "p.jsonl", "line 1: not an object"),
        ('{"text": "a"}', "p.jsonl", "line 1: `prompt` is missing"),
        ('{"prompt": " "}', "p.jsonl", "line 1: `prompt` is empty"),
        ('{"prompt": 3}', "p.jsonl", "line 1: `prompt` is empty or no text"),
        ('{"prompt": "a", "class": 3}', "p.jsonl", "line 1: `class`"),
        ('{"prompt": "a", "class": "overall"}', "p.jsonl", "'overall'"),
        ('{"prompt": "\\ud800"}', "p.jsonl", "line 1: not valid Unicode"),
        ("[" * 100_000, "p.jsonl", "line 1: not JSON"),
        (b"caf\xe9", "p.txt", "not UTF-8"),
    ],
)
def test_a_bad_file_is_a_usage_error_with_its_line(write, content: str | bytes, name: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_file(write(content, name))
    assert named in str(caught.value)


def test_a_missing_file_and_a_folder_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_file(tmp_path / "none.txt")
    with pytest.raises(UsageError, match="cannot be read"):
        read_file(tmp_path)


def test_own_prompts_replace_the_built_in_set(write) -> None:
    assert gather(["one"], [write("two")]) == [Prompt("one", "own"), Prompt("two", "own")]
    assert gather([], []) == builtin()
    with pytest.raises(UsageError, match="--prompt is empty"):
        gather([" "], [])


def test_what_never_ends_is_not_read_to_its_end(monkeypatch) -> None:
    monkeypatch.setattr("dspark.racing.prompts.LARGEST_BYTES", 1000)
    with pytest.raises(UsageError, match="larger than"):
        read_file(Path("/dev/zero"))
