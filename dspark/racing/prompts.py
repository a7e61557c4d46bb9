"""Prompts of a race: the built-in set, a caller's own, and prompt files.

A prompt file is JSON lines or text, in UTF-8. It is JSON lines when its name ends in `.jsonl` or `.json`, or when its
first character that is no blank is `{`: an object a line, `prompt` a string, `class` a short word if there is one,
other keys ignored. Otherwise it is text with one prompt a line. Lines end at a newline and nowhere else, and blank ones
are skipped, in both.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dspark.errors import UsageError

OWN_CLASS = "own"
LARGEST_BYTES = 64 * 2**20
CLASS = re.compile(r"[\w-]{1,32}")  # it stands at the head of tables, on terminals and in Markdown
OVERALL = "overall"  # the name under which all classes together are reported

Sections = dict[str, tuple[str, ...]]
"""section → the sections that make it up: itself for a class at a depth, several where they are taken together."""


@dataclass(frozen=True)
class Prompt:
    """One user turn, its class, and how many tokens of other text stand before it."""

    text: str
    klass: str
    depth: int = 0

    @property
    def section(self) -> str:
        """What it is reported under: its class, at its depth where it has one."""
        return f"{self.klass}@{depth_label(self.depth)}" if self.depth else self.klass


def builtin() -> list[Prompt]:
    """Four classes (chat, code, math, copy) of three prompts; copy repeats or edits a text that it is given."""
    return _read_json_lines(files("dspark.racing").joinpath("builtin.jsonl").read_text("utf-8"), "builtin.jsonl")


def gather(texts: Sequence[str], prompt_files: Iterable[Path]) -> list[Prompt]:
    """The caller's prompts in order, texts first; the built-in set where there are none. Raises UsageError."""
    prompts = []
    for text in texts:
        if not text.strip():
            raise UsageError("--prompt is empty; give it some text, or leave it out for the built-in prompts")
        prompts.append(Prompt(_clean(text, "--prompt"), OWN_CLASS))
    for path in prompt_files:
        prompts += read_file(path)
    return prompts or builtin()


def sections(prompts: Iterable[Prompt]) -> Sections:
    """What is reported apart, depth by depth: the classes in the order of their first, and all of them together.

    `OVERALL` comes last. Like those of the depths, it is there even where it is no more than its one member.
    """
    by_depth: dict[int, dict[str, None]] = {}
    for prompt in prompts:
        by_depth.setdefault(prompt.depth, {})[prompt.section] = None
    found: dict[str, tuple[str, ...]] = {}
    for depth, members in sorted(by_depth.items()):
        found |= {section: (section,) for section in members}
        if len(by_depth) > 1:
            found[overall_at(depth)] = tuple(members)
    return found | {OVERALL: tuple(section for members in by_depth.values() for section in members)}


def depth_label(depth: int) -> str:
    """`4k` for 4096, `1000` for 1000."""
    return f"{depth // 1024}k" if depth and depth % 1024 == 0 else str(depth)


def overall_at(depth: int) -> str:
    """The section of all classes at one of several depths."""
    return f"{OVERALL}@{depth_label(depth)}"


def is_overall(section: str) -> bool:
    """Whether `section` is several classes together."""
    return section.partition("@")[0] == OVERALL


def read_file(path: Path) -> list[Prompt]:
    """All prompts of one file, at least one. Raises UsageError with the line at fault."""
    try:
        with path.open("rb") as stream:
            held = stream.read(LARGEST_BYTES + 1)
        if len(held) > LARGEST_BYTES:
            raise UsageError(f"--prompt-file {path} is larger than {LARGEST_BYTES // 2**20} MB; check the path")
        content = held.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompt-file {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except FileNotFoundError as error:
        raise UsageError(f"--prompt-file {path} does not exist; check the path") from error
    except OSError as error:
        raise UsageError(f"--prompt-file {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"--prompt-file {str(path)!r} is no name of a file; check the path") from error
    as_json = path.suffix.lower() in (".jsonl", ".json") or content.lstrip().startswith("{")
    prompts = _read_json_lines(content, str(path)) if as_json else _read_text(content, str(path))
    if not prompts:
        raise UsageError(f"--prompt-file {path} holds no prompt; write one a line")
    return prompts


def _read_text(content: str, name: str) -> list[Prompt]:
    lines = enumerate(content.split("\n"), start=1)  # nor at a form feed, which is part of a text
    return [Prompt(_clean(line.strip(), f"{name}, line {number}"), OWN_CLASS) for number, line in lines if line.strip()]


def _read_json_lines(content: str, name: str) -> list[Prompt]:
    # Not splitlines(): a JSON string may hold U+2028 and its kind as they are.
    lines = enumerate(content.split("\n"), start=1)
    return [_read_json_line(line, f"{name}, line {number}") for number, line in lines if line.strip()]


def _read_json_line(line: str, where: str) -> Prompt:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({_reason(error)}); one object a line") from error
    if not isinstance(record, dict):
        raise UsageError(f'{where}: not an object; write {{"prompt": "..."}}')
    text, klass = record.get("prompt"), record.get("class", OWN_CLASS)
    if not isinstance(text, str) or not text.strip():
        wrong = "empty or no text" if "prompt" in record else "missing"
        raise UsageError(f'{where}: `prompt` is {wrong}; write {{"prompt": "..."}}')
    if not isinstance(klass, str) or not CLASS.fullmatch(klass):
        raise UsageError(f"{where}: `class` must be a short word of letters, digits, - and _, or left out")
    if klass == OVERALL:
        raise UsageError(f"{where}: the class name {OVERALL!r} stands for all classes together; take another")
    return Prompt(_clean(text, where), klass)


def _reason(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else "nested too deep or number too long"


def _clean(text: str, where: str) -> str:
    """`text` as it is, unless it is no Unicode text (a lone surrogate, from a `\\ud800` or an undecodable argument)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{where}: not valid Unicode text; check its encoding") from error
    return text
