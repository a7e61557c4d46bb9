"""JSON schemas that no grammar can be made of: those that are not JSON, are too large, or have no finite value."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dspark.errors import ConstraintError

# Larger schemas take seconds to compile, and what they describe is longer than an answer.
MAX_SCHEMA_BYTES = 1 << 17


def refuse_senseless(schema: Any, what: str) -> None:
    """Refuse what cannot be meant; `what` names the schema in the message.

    Raises:
        ConstraintError: not an object, not JSON, too large or deep, or without a finite value.
    """
    if not isinstance(schema, Mapping):
        raise ConstraintError(f"{what} must be an object, not {type(schema).__name__}")
    try:
        size = len(json.dumps(schema, allow_nan=False))
        finite = size > MAX_SCHEMA_BYTES or _has_finite_value(schema)
    except RecursionError as error:
        raise ConstraintError(f"{what} is nested too deeply; make it flatter") from error
    except (TypeError, ValueError) as error:
        raise ConstraintError(f"{what} is not plain JSON ({error}); send JSON values only") from error
    if size > MAX_SCHEMA_BYTES:
        raise ConstraintError(f"{what} has {size} bytes, {MAX_SCHEMA_BYTES} are the most; make it smaller")
    if not finite:
        raise ConstraintError(f"{what} has no finite value, since it requires itself; make a property optional")


def _has_finite_value(root: Mapping[str, Any]) -> bool:
    """Whether the references that `root` must follow end somewhere."""
    finite: set[str] = set()
    while True:
        known = len(finite)
        if _finite(root, root, finite, set()):
            return True
        if len(finite) == known:
            return False


def _finite(schema: Any, root: Mapping[str, Any], finite: set[str], tried: set[str]) -> bool:
    """One pass: references under way or found endless in it count as endless; those found `finite` stay so."""
    if not isinstance(schema, Mapping):
        return True
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in finite:
        if reference in tried:
            return False
        tried.add(reference)
        if not _finite(_resolved(reference, root), root, finite, tried):
            return False
        finite.add(reference)
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list) and branches and not any(_finite(b, root, finite, tried) for b in branches):
            return False
    return all(_finite(part, root, finite, tried) for part in _required_parts(schema))


def _required_parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas of what every value of `schema` holds or obeys."""
    properties, required, least, together = map(schema.get, ("properties", "required", "minItems", "allOf"))
    if isinstance(properties, Mapping) and isinstance(required, list):
        yield from (properties.get(name) for name in required if isinstance(name, str))
    if isinstance(least, int) and least > 0:
        yield schema.get("items")
    if isinstance(together, list):
        yield from together


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """What a local reference points to; None for others and for none."""
    found: Any = root if reference.startswith("#") else None
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
