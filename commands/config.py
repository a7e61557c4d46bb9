"""What `mlx-dspark --show-config` prints: every setting, its value, and where that came from."""

from __future__ import annotations

from typing import Any

from dspark.settings import Settings

INDENT = 2


def show_settings(settings: Settings, *, as_json: bool) -> None:
    """A section a paragraph, a setting a line; in place of a place, a default says so."""
    from dspark.commands.rendering import print_json, print_lines, stdout_console

    shown = settings.as_dict()
    if as_json:
        print_json(shown)
        return
    console = stdout_console()
    width = max(len(name) for rows in shown.values() for name in rows) + INDENT
    for section, rows in shown.items():
        print_lines(console, section, style="bold")
        for name, row in rows.items():
            line = f"{name:<{width}}{_plain(row['value'])}  ({row['place'] or row['origin']})"
            print_lines(console, line, indent=INDENT, hanging=width)


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)
