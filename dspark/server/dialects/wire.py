"""The one validator: bodies to typed fields, and what is wrong with them in one line."""

from collections.abc import Sequence
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Tag, ValidationError

from dspark.errors import ValidationFailed
from dspark.server.body import json_object

MAX_NAMED_ERRORS = 8

T = TypeVar("T")


class Wire(BaseModel):
    """Base of all that clients send: unknown fields are ignored, and nothing is taken for what it is not."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    @classmethod
    def read(cls, body: bytes) -> Self:
        """The fields of a JSON body; a field that is null is absent.

        Raises:
            BadRequest: it is no JSON object, or nested too deep.
            ValidationFailed: naming each field that is wrong, and why.
        """
        try:
            given = {name: value for name, value in json_object(body).items() if value is not None}
            return cls.model_validate(given)
        except ValidationError as error:
            found = [(_path(each["loc"]), each["msg"]) for each in error.errors(include_url=False, include_input=False)]
            raise invalid(found) from None


def invalid(found: Sequence[tuple[Sequence[str], str]]) -> ValidationFailed:
    """The error for fields at these paths, with what is wrong about each."""
    lines = [" -> ".join(("body", *path)) + f": {message}" for path, message in found[:MAX_NAMED_ERRORS]]
    return ValidationFailed("; ".join(lines), found[0][0][0] if found[0][0] else None)


def shape(value: Any) -> str | None:
    """The tag of the union's member that `value` can only mean."""
    return next((f"<{kind.__name__}>" for kind in (str, bool, list, dict) if isinstance(value, kind)), None)


def _path(location: tuple[int | str, ...]) -> list[str]:
    """Without the tags that tell the members of a union apart."""
    return [str(step) for step in location if not (isinstance(step, str) and step.startswith("<"))]


StrOrList = Annotated[
    Annotated[str, Tag("<str>")] | Annotated[list[T], Tag("<list>")],
    Discriminator(
        shape, custom_error_type="str_or_list", custom_error_message="Input should be a valid string or list"
    ),
]
Schema = dict[str, Any]
