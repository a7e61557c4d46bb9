"""Which of mlx-lm's model types can be speculated with, and how: read from the installed library's own code.

No model is built. A type's caches are those that its `make_cache` names (without one every layer has a KVCache).
Recurrent state can be rebuilt where the layers use an update function that `dspark.targets.recurrence` records, or
where all of it is convolutions. At load a probe has the last word.
"""

import contextlib
import importlib
import inspect
import io
import pkgutil
import re
import sys
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Literal, TypeGuard

import mlx_lm.models
from mlx_lm.models import cache as mlx_cache

from dspark.targets.recurrence import UPDATES
from dspark.targets.rewind import Replaced, rewinder_class

Method = Literal["trim", "recorded", "replay", "refused"]

_LIBRARY = "mlx_lm.models."
_CACHE_CLASS = re.compile(r"\b([A-Z]\w*Cache|CacheList)\(")
_ARRAYS = re.compile(r"ArraysCache\((?:size=)?(\d+)\)")


@dataclass(frozen=True)
class Support:
    """How speculation runs on a model type whose layers hold `caches`, with `refusal` where it does not."""

    model_type: str
    caches: tuple[str, ...]
    method: Method
    refusal: str | None = None


def survey() -> list[Support]:
    """Every model type that the installed mlx-lm ships, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__))
    return [support for name in names if (support := _support(name)) is not None]


def _support(name: str) -> Support | None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # a model that misses a package of its own says so
            module = importlib.import_module(_LIBRARY + name)
    except (Exception, SystemExit) as error:  # a model may need a package of its own, and one ends the process
        return Support(name, (), "refused", f"mlx-lm cannot import it here ({type(error).__name__})")
    if not (hasattr(module, "Model") and hasattr(module, "ModelArgs")):
        return None
    makers = _makers(module.Model)
    named = {found for maker in makers for found in _CACHE_CLASS.findall(inspect.getsource(maker))} or {"KVCache"}
    caches = tuple(sorted(named - {"CacheList"}))
    rewinders = {found: rewinder_class(_class_named(found, makers)) for found in caches}
    unknown = [found for found, made in rewinders.items() if made is None]
    if unknown:
        return Support(name, caches, "refused", f"its cache uses {', '.join(unknown)}")
    if Replaced not in rewinders.values():
        return Support(name, caches, "trim")
    return Support(name, caches, "recorded" if any(_is_recorded(maker) for maker in makers) else "replay")


def _makers(model: type, seen: frozenset[type] = frozenset()) -> list[FunctionType]:
    """The functions that create a model's caches: its `make_cache`, or those that this one may ask to do it."""
    made = getattr(model, "make_cache", None)
    if made is None:
        return []
    if _CACHE_CLASS.search(inspect.getsource(made)):
        return [made]
    parts = [value for value in made.__globals__.values() if _is_model_part(value)]
    parts += [value.Model for value in made.__globals__.values() if isinstance(value, ModuleType) and _is_model(value)]
    seen |= {model}
    return [maker for part in parts if part not in seen for maker in _makers(part, seen)]


def _is_model(module: ModuleType) -> bool:
    return module.__name__.startswith(_LIBRARY) and hasattr(module, "Model")


def _is_model_part(value: object) -> TypeGuard[type]:
    return inspect.isclass(value) and value.__module__.startswith(_LIBRARY) and hasattr(value, "make_cache")


def _class_named(name: str, makers: list[FunctionType]) -> type:
    found = next((maker.__globals__[name] for maker in makers if name in maker.__globals__), mlx_cache.KVCache)
    assert isinstance(found, type)
    return found


def _is_recorded(maker: FunctionType) -> bool:
    if any(inspect.isfunction(value) and value in UPDATES for value in maker.__globals__.values()):
        return True
    sizes = {int(size) for size in _ARRAYS.findall(inspect.getsource(maker))}
    convolutions = inspect.getsource(sys.modules[maker.__module__]).count("nn.Conv1d(")
    return sizes == {convolutions}
