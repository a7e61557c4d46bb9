"""Whether an SDK's own types really took in what a server said."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

# What this server adds to the dialects, the field for thoughts that OpenAI's dialect has by custom alone, and what
# OpenAI's own server says although its SDK has no field for it.
OURS = {
    "store",
    "x_mlx_dspark",
    "reasoning_content",
    "time_to_first_token",
    "total_time",
    "prompt_tokens_per_second",
    "generation_tokens_per_second",
    "context_window",
}
_adapter = cache(TypeAdapter)


def check(value: Any, *, extra: frozenset[str] = frozenset(), strictly: bool = True) -> Any:
    """`value`, which an SDK made without validating: no field unknown to it, none missing, each of its type.

    `extra` are fields that the SDK knows elsewhere, without `strictly` types are not looked at.
    """
    assert isinstance(value, BaseModel), f"no type of the SDK's took this: {value!r}"
    for model in _models(value):
        unknown = set(model.model_extra or ()) - OURS - extra
        assert not unknown, f"{type(model).__name__} does not know {sorted(unknown)}: {model!r}"
    if strictly:
        _adapter(type(value)).validate_python(value.model_dump(mode="json", by_alias=True, exclude_unset=True))
    return value


def _models(value: Any) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        for name in value.model_fields_set - set(value.model_extra or ()):
            yield from _models(getattr(value, name, None))
    elif isinstance(value, dict):
        for each in value.values():
            yield from _models(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _models(each)
