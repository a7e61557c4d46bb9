"""Which models a request may name.

A name (`org/model`, an id of the registry, a bare name) is looked for on the shelves and on the Hub. A path must be
absolute: the folder that the server was started in means nothing to a client, so nothing in it is taken for a name.
From this machine it may be any path; from another one it must lie, links followed, inside a shelf of models. A refusal
names nothing of what is on the disk.
"""

from pathlib import Path

from dspark.errors import BadRequest
from dspark.hub import registry, shelves
from dspark.server.origins import is_loopback

_LONGEST_PART_BYTES = 255  # what file systems take


def check_name(name: str, field: str, client: str) -> None:
    """Refuse a `name` given by `client`, an address, that a request may not ask for.

    Raises:
        BadRequest: `field` says what it may be.
    """
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise _refusal(field)
    if any(len(part.encode()) > _LONGEST_PART_BYTES for part in name.split("/")):
        raise _refusal(field)
    if name.startswith("/"):
        _check_path(Path(name), field, client)
    elif not _is_name(name) or (name != registry.DEMO.id and Path(name).exists()):
        raise _refusal(field)


def _is_name(name: str) -> bool:
    parts = name.split("/")
    return len(parts) <= 2 and all(part and not part.startswith((".", "~")) and ":" not in part for part in parts)


def _check_path(path: Path, field: str, client: str) -> None:
    if ".." in path.parts:
        raise _refusal(field)
    if is_loopback(client):
        return
    try:
        real = path.resolve()
        inside = any(real.is_relative_to(shelf.path.resolve()) for shelf in shelves.shelves())
    except (OSError, RuntimeError):
        inside = False
    if not inside:
        raise _refusal(field)


def _refusal(field: str) -> BadRequest:
    return BadRequest(
        f"{field} must be a name like org/model or the full path of a folder; "
        "from another machine, one inside the server's model folders",
        field,
    )
