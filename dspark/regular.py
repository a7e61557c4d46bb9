"""Paths that are no files: reading a pipe waits for whoever writes to it, reading a device may never end."""

from pathlib import Path


def special(path: Path) -> bool:
    """Whether something is there, and it is no regular file (nor a link to one)."""
    return path.exists() and not path.is_file()
