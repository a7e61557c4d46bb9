"""YAML files that people write and others send: read with a bound, without tags or anchors, and no key twice."""

import errno
from pathlib import Path
from typing import Any

import yaml

from dspark.regular import special


class Malformed(ValueError):
    """What is wrong, as a phrase without an end, and in which line, counted from 1 (None: in none that is known)."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem if line is None else f"line {line}: {problem}")
        self.problem = problem
        self.line = line


class Lined(dict[Any, Any]):
    """A mapping of the file; `lines` has the line of each key."""

    lines: dict[Any, int]


def read(path: Path, most_bytes: int) -> Any:
    """What a file of at most `most_bytes` holds, None where that is nothing. Raises OSError, Malformed."""
    if special(path):
        raise OSError(errno.EINVAL, "it is no regular file")
    with path.open("rb") as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise Malformed(f"larger than {most_bytes // 1024} KiB")
    try:
        return parse(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8 (byte {error.start})") from error


def parse(text: str) -> Any:
    """What a document holds; its mappings are `Lined`. Raises Malformed."""
    try:
        return yaml.load(text, _Loader)
    except Malformed:
        raise
    except RecursionError as error:
        raise Malformed("not YAML (too deep)") from error
    except (yaml.YAMLError, ValueError) as error:
        mark, problem = (getattr(error, name, None) for name in ("problem_mark", "problem"))
        problem = " ".join(str(problem or getattr(error, "reason", None) or error).split())
        raise Malformed(f"not YAML ({problem[:160]})", mark.line + 1 if mark else None) from error


class _Loader(yaml.SafeLoader):
    """Nothing here needs aliases or tags: bombs are made of the first, the second have constructors that fail badly."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.tag is not None:
            raise Malformed("aliases and tags are not allowed", event.start_mark.line + 1)
        return super().compose_node(parent, index)

    def lined(self, node: yaml.MappingNode) -> Any:
        """A mapping, without dropping the first of two equal keys as YAML would."""
        found = Lined()
        found.lines = {}
        for key_node, value_node in node.value:
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if isinstance(key, list | dict | set):
                raise Malformed("a key must be a word or a number", line)
            if key in found:
                raise Malformed(f"{key!r} stands in line {found.lines[key]} already; leave one of them", line)
            found[key], found.lines[key] = self.construct_object(value_node, deep=True), line
        return found

    def word(self, node: yaml.ScalarNode) -> Any:
        """What `<<` and `=` are here: words."""
        return self.construct_scalar(node)


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.lined)
for _kind in ("merge", "value"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.word)
