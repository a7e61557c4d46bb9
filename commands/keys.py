"""`mlx-dspark keys`: named keys for people and programs that are to use a server and not to run it."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

from typer import Argument, Option

from dspark.errors import UsageError


class Action(StrEnum):
    """What to do with them."""

    LIST = "list"
    CREATE = "create"
    REVOKE = "revoke"


def keys(
    action: Annotated[Action, Argument(help="What to do.")] = Action.LIST,
    name: Annotated[str | None, Argument(metavar="[NAME]", help="Of the key to create or revoke.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON, and nothing else on stdout.")] = False,
) -> int:
    """Make and revoke named keys, of use with a server that has a key of its own.

    They open generation and what is only read, never the control plane. A server that runs heeds a change at once. A
    key is shown when it is made and never again: only its hash is kept.

    Examples:

        mlx-dspark keys create laptop

        mlx-dspark keys revoke laptop
    """
    from dspark.commands.rendering import inert, print_json, print_lines, stderr_console
    from dspark.server.keys import SubKeys

    kept = SubKeys.at_home()
    if action is Action.LIST:
        if name is not None:
            raise UsageError("keys list takes no name: it lists them all")
        if as_json:
            print_json({"keys": kept.names()})
        else:
            sys.stdout.write("".join(f"{inert(one)}\n" for one in kept.names()))
        return 0
    if name is None:
        raise UsageError(f"give the name of the key: mlx-dspark keys {action.value} NAME")
    if action is Action.REVOKE:
        kept.revoke(name)
        if as_json:
            print_json({"revoked": name})
        return 0
    key = kept.create(name)
    if as_json:
        print_json({"name": name, "key": key})
    else:
        print_lines(stderr_console(), "Copy it now; it is not shown again:")
        sys.stdout.write(f"{key}\n")
    return 0
