"""The JSON object in a request's body: well-formed, not too deep, with numbers that are numbers."""

import json
import math
from typing import Any

from dspark.errors import BadRequest, ValidationFailed

DEPTH_LIMIT = 200


def json_object(body: bytes) -> dict[str, Any]:
    """Read the object that `body` holds. Halves of surrogate pairs in its texts become U+FFFD.

    Raises:
        BadRequest: no UTF-8, no JSON, no object, or nested deeper than `DEPTH_LIMIT`.
        ValidationFailed: a number that is not finite; `param` is the outermost field it is in.
    """
    try:
        value = json.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadRequest("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadRequest(
            f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}; send one JSON object"
        ) from None
    except RecursionError:
        raise BadRequest(f"the body is nested more than {DEPTH_LIMIT} deep") from None
    except ValueError:
        raise BadRequest("the body holds an integer of thousands of digits") from None
    if not isinstance(value, dict):
        raise BadRequest("the body is not a JSON object: send {…}")
    _check(value)
    return value


def _check(root: dict[str, Any]) -> None:
    """Walk over everything in `root`, without recursion."""
    pending: list[tuple[Any, tuple[str, ...]]] = [(root, ())]
    while pending:
        container, path = pending.pop()
        if len(path) >= DEPTH_LIMIT:
            raise BadRequest(f"the body is nested more than {DEPTH_LIMIT} deep")
        for key, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
            if isinstance(value, float):
                if not math.isfinite(value):
                    where = " -> ".join(("body", *path, str(key)))
                    field = path[0] if path else str(key)
                    raise ValidationFailed(f"{where}: Input should be a finite number", param=field)
            elif isinstance(value, str):
                if not _encodable(value):
                    container[key] = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            elif isinstance(value, dict | list):
                pending.append((value, (*path, str(key))))
            if isinstance(key, str) and not _encodable(key):
                raise BadRequest("the name of a field in the body holds half of a surrogate pair")


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
