"""Flags that are settings: a command names those it takes, and gets them settled with variables and the file."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dspark.settings import SETTINGS, Setting, Settings, resolve

if TYPE_CHECKING:
    from dspark.decoding.request import Mode, SpeculationOptions
    from dspark.engine import LoadOptions
    from dspark.machine.precision import Precision

SHOW_CONFIG = "show_config"
PANELS = {
    "model": "Model",
    "speculation": "Speculation",
    "generation": "Generation",
    "server": "Server",
    "cache": "Prefix cache",
}


def takes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for commands: their first argument becomes the `Settings`, and each setting named here a flag.

    Parameters after the first stay flags of the command's own; one of the name `context` gets Typer's.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def settled(context: typer.Context, **given: Any) -> Any:
            settings = settle(context, {name: given.pop(name) for name in names})
            return command(settings, **(given | {"context": context} if asks else given))

        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        asks = any(one.name == "context" for one in own)
        parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
        parameters += [_parameter(SETTINGS[name]) for name in names]
        parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own if one.name != "context"]
        settled.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        settled.__annotations__ = {one.name: one.annotation for one in parameters}
        return settled

    return decorate


def load_options(settings: Settings) -> LoadOptions:
    """What to load, as the engine takes it."""
    from dspark.engine import LoadOptions
    from dspark.prefix.options import PrefixOptions

    model = settings.model
    return LoadOptions(
        model.model,
        model.drafter,
        mode=cast("Mode", model.mode),
        precision=cast("Precision | None", model.precision),
        trust_remote_code=model.trust_remote_code,
        kv_bits=model.kv_bits or None,
        drafter_bits=model.drafter_bits,
        drafter_window=model.drafter_window,
        sdpa_split=model.sdpa_split,
        profile=model.profile,
        context_window=settings.memory.context_window,
        memory_guard=settings.memory.memory_guard,
        prefix=PrefixOptions.of(settings.cache),
    )


def speculation_options(settings: Settings) -> SpeculationOptions:
    """How to speculate."""
    from dspark.decoding.request import SpeculationOptions

    wanted = settings.speculation
    return SpeculationOptions.of(
        cast("Mode", settings.model.mode), wanted.max_draft, wanted.lookup_drafts, wanted.confidence_threshold
    )


def settle(context: typer.Context, flags: dict[str, Any]) -> Settings:
    """The settings in force for a command with these flags; with `--show-config` before it, shows them and leaves."""
    settings = resolve(flags)
    show = context.find_root().meta.get(SHOW_CONFIG)
    if show is not None:
        show(settings)
        raise typer.Exit
    return settings


def _parameter(setting: Setting) -> inspect.Parameter:
    switch = isinstance(setting.default, bool) or setting.kind.metavar == ""
    annotation = Annotated[(bool if switch else str) | None, _option(setting, switch=switch)]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _option(setting: Setting, *, switch: bool) -> Any:
    from dspark.settings.precedence import read

    note = "" if setting.default is None or "Default" in setting.help else f" Default: {_plain(setting.default)}."
    text = setting.help + note
    panel = PANELS.get(setting.section)
    if switch:
        # What no file can turn on needs no flag to turn it off.
        flags = f"{setting.flag}/--no-{setting.flag[2:]}" if "file" in setting.sources else setting.flag
        return typer.Option(flags, help=text, show_default=False, rich_help_panel=panel)
    return typer.Option(
        setting.flag,
        help=text,
        metavar=setting.kind.metavar,
        parser=lambda value: read(setting, value, setting.flag),
        show_default=False,
        rich_help_panel=panel,
    )


def _plain(value: Any) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
