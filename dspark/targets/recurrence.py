"""The exact fast path for recurrent layers: what a verify pass fed to them is recorded, so that their state after its
first n rows can be computed without another forward.

Two things make up such a state. A convolution's tail is a slice of the rows that went into it. A recurrence's state is
what the library's own update function returns for the first n rows of the arguments it was given.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import cache as mlx_cache
from mlx_lm.models import gated_delta, ssm

from dspark.targets.rewind import Replaced, Rewinder

# Update functions (arguments → output, new state), and which of their arguments have one row a token, on axis 1.
UPDATES: dict[Callable[..., Any], tuple[str, ...]] = {
    gated_delta.gated_delta_update: ("q", "k", "v", "a", "b", "mask"),
    ssm.ssm_update: ("hidden_states", "B", "C", "dt", "mask"),
}


@dataclass(frozen=True)
class _Update:
    function: Callable[..., Any]
    arguments: inspect.BoundArguments
    state: mx.array

    def after(self, rows: int) -> mx.array:
        """The state after the first `rows` rows."""
        arguments = dict(self.arguments.arguments)
        for name in UPDATES[self.function]:
            if arguments.get(name) is not None:
                arguments[name] = arguments[name][:, :rows]
        shorter = inspect.BoundArguments(self.arguments.signature, arguments)
        _, state = self.function(*shorter.args, **shorter.kwargs)
        return state


@dataclass(frozen=True)
class _Tail:
    """Rows [1, tail + width, channels] that entered a convolution: the old tail and the new rows."""

    entered: mx.array
    length: int

    def after(self, rows: int) -> mx.array:
        """The tail after the first `rows` new rows, in a buffer of its own."""
        return mx.contiguous(self.entered[:, rows : rows + self.length])


@dataclass
class Tape:
    """What one forward fed to convolutions and recurrences, in order."""

    entered: list[mx.array] = field(default_factory=list)
    updates: list[_Update] = field(default_factory=list)

    def attach(self, rewinders: Iterable[Rewinder], width: int) -> None:
        """Give every recurrent cache its `rebuild`; none of them where the recording does not explain them all."""
        recurrent = [r for r in rewinders if isinstance(r, Replaced)]
        if not all(isinstance(r.entry, mlx_cache.ArraysCache) for r in recurrent):
            return
        updates = {id(update.state): update for update in self.updates}
        entered = list(reversed(self.entered))
        plans: list[list[_Update | _Tail]] = []
        for one in recurrent:
            plan: list[_Update | _Tail] = []
            for held in one.entry.cache:
                if (update := updates.pop(id(held), None)) is not None:
                    plan.append(update)
                    continue
                rows = entered.pop() if entered else None
                if (
                    held is None
                    or rows is None
                    or rows.shape != (held.shape[0], held.shape[1] + width, *held.shape[2:])
                ):
                    return
                plan.append(_Tail(rows, held.shape[1]))
            plans.append(plan)
        if entered or updates:
            return
        for one, plan in zip(recurrent, plans, strict=True):
            one.rebuild = lambda rows, plan=plan: [part.after(rows) for part in plan]


class Recorder:
    """Makes recordings of one model. While none is open the model and its library are as they were."""

    def __init__(self, model: nn.Module) -> None:
        # What listens has hold of this alone: a class lives on after its model, and with it what it knows.
        self._open: list[Tape] = []
        modules = model.modules()
        self._swaps = [(m, type(m), self._listening(type(m))) for m in modules if isinstance(m, nn.Conv1d)]
        namespaces = {name: vars(sys.modules[name]) for name in {type(m).__module__ for m in modules}}
        self._patches = [
            (namespace, name, function, self._recorded(function))
            for namespace in namespaces.values()
            for name, function in list(namespace.items())
            if callable(function) and _hashable(function) and function in UPDATES
        ]

    @property
    def hears(self) -> bool:
        """Whether the model has anything to record."""
        return bool(self._swaps or self._patches)

    @contextmanager
    def recording(self) -> Iterator[Tape]:
        """Record the forward that runs inside."""
        tape = Tape()
        self._open[:] = [tape]
        try:
            for module, _, listening in self._swaps:
                module.__class__ = listening
            for namespace, name, _, recorded in self._patches:
                namespace[name] = recorded
            yield tape
        finally:
            self._open.clear()
            for module, plain, _ in self._swaps:
                module.__class__ = plain
            for namespace, name, function, _ in self._patches:
                namespace[name] = function

    def _listening(self, plain: type[nn.Module]) -> type[nn.Module]:
        tapes = self._open

        def call(module: nn.Module, rows: mx.array) -> Any:
            for tape in tapes:
                tape.entered.append(rows)
            return plain.__call__(module, rows)

        return type(plain.__name__, (plain,), {"__call__": call})

    def _recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        signature, tapes = inspect.signature(function), self._open

        def call(*args: Any, **kwargs: Any) -> Any:
            out, state = function(*args, **kwargs)
            for tape in tapes:
                tape.updates.append(_Update(function, signature.bind(*args, **kwargs), state))
            return out, state

        return call


def _hashable(value: Any) -> bool:
    return type(value).__hash__ is not None
