"""`mlx-dspark machine`: the chip, its memory, how fast both are, and what that allows a model."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from dspark.commands.options import takes
from dspark.settings import SETTINGS, Settings, api_key

if TYPE_CHECKING:
    from dspark.engine import LoadOptions
    from dspark.machine.capability import Capability
    from dspark.tuning.plots import Plot
    from dspark.tuning.roofline import Roofline

DECODED_TOKENS = 24
PROMPT = "Describe a walk along the coast in autumn, from the harbour to the lighthouse and back."


@takes("api_key", "api_key_file")
def machine(
    settings: Settings,
    as_json: Annotated[bool, Option("--json", help="Print JSON, and nothing else on stdout.")] = False,
    model: Annotated[
        str | None,
        Option(help="Add a model's roofline: a folder, org/name or id that is on disk. Nothing is fetched."),
    ] = None,
    depth: Annotated[
        int | None, Option(min=0, help="Tokens of context to give a ceiling for, beside none and a full window.")
    ] = None,
    kv_bits: Annotated[int | None, Option(help="Count keys and values quantized to 4 or 8 bits.")] = None,
    measure: Annotated[
        bool, Option("--measure", help="Load the model too and time plain decoding of a short answer.")
    ] = False,
    plot: Annotated[
        str | None,
        Option(metavar="FILE", help="Draw the roofline into a .png, .svg or .pdf file, or - for the terminal."),
    ] = None,
    url: Annotated[
        str | None,
        Option(metavar="URL", help="Watch the server that runs there instead; where stdout is no terminal, look once."),
    ] = None,
) -> int:
    """Describe this machine and measure its memory bandwidth, which bounds how fast a model can decode.

    With --url: what a running server does, every second anew until Ctrl-C. Acceptance by place in the draft, speed
    against the ceiling, memory, and what is remembered of prompts.

    Examples:

        mlx-dspark machine --model demo --plot -

        mlx-dspark machine --url http://127.0.0.1:8080
    """
    from dspark.commands.plotting import TERMINAL, check_target
    from dspark.commands.rendering import print_json
    from dspark.errors import UsageError
    from dspark.machine import capability

    about_a_model = {"--depth": depth, "--kv-bits": kv_bits, "--measure": measure or None, "--plot": plot}
    named = [flag for flag, given in about_a_model.items() if given is not None]
    if url is not None:
        if named or model is not None:
            raise UsageError(f"{'--model' if model else named[0]} is about this machine: leave it or --url out")
        return _watch(url, api_key(settings), as_json=as_json)
    for name in ("api_key", "api_key_file"):
        if settings.origin(name) == "flag":
            raise UsageError(f"{SETTINGS[name].flag} belongs to a running server: add --url")
    if model is None and named:
        raise UsageError(f"{named[0]} is about a model: add --model, for one --model demo")
    if kv_bits not in (None, 4, 8):
        raise UsageError(f"--kv-bits {kv_bits} is not possible; give 4 or 8, or leave it out")
    if plot == TERMINAL and as_json:
        raise UsageError("--plot - draws where --json prints; give --plot a file, or leave one of them out")
    if plot is not None:
        check_target(plot)
    found = capability.measure()
    with contextlib.redirect_stdout(sys.stderr):  # some libraries greet on stdout when they are first imported
        bound, folder = (None, None) if model is None else _roofline(model, found, depth, kv_bits, measure)
    if as_json:
        print_json(found.as_dict() | {"model": {"name": model} | bound.as_dict() if bound else None})
    else:
        _show(found, model, bound)
    if plot is not None and bound is not None and folder is not None and model is not None:
        _draw(bound, model, folder, plot)
    return 0


def _watch(url: str, key: str | None, *, as_json: bool) -> int:
    """Show a running server; on a terminal again and again, until Ctrl-C."""
    from dspark.client import Client
    from dspark.commands import server_view
    from dspark.commands.rendering import draws, print_json, stdout_console

    console = stdout_console()
    with Client(url, key) as server:
        if as_json:
            print_json(server.seen(server_view.ROUNDS))
        elif not draws(console):
            server_view.show(server.seen(server_view.ROUNDS), console)
        else:
            with contextlib.suppress(KeyboardInterrupt):
                server_view.watch(server, console)
    return 0


def _show(found: Capability, model: str | None, bound: Roofline | None) -> None:
    from dspark.commands import machine_view
    from dspark.commands.rendering import print_lines, stderr_console

    machine_view.show(found)
    if bound is not None and model is not None:
        machine_view.show_model(model, bound)
    for sentence in found.conditions.disturbances():
        print_lines(stderr_console(), sentence, style="yellow")


def _roofline(
    model: str, found: Capability, depth: int | None, kv_bits: int | None, measure: bool
) -> tuple[Roofline, Path]:
    """What the machine allows the model, and the folder that holds it."""
    from dspark.errors import UsageError
    from dspark.hub.checkpoint import read_config, weight_files
    from dspark.hub.vetting import trusted

    if found.machine.runtime.mlx_error is not None:
        raise UsageError(f"--model takes a working MLX ({found.machine.runtime.mlx_error}); see mlx-dspark doctor")
    from dspark.targets.weighing import weigh_config, weigh_folder
    from dspark.tuning.roofline import roofline

    options, folder = _present(model, kv_bits)
    if weight_files(folder):
        traffic = weigh_folder(folder, kv_bits=kv_bits, trust_remote_code=trusted(False))
    else:
        traffic = weigh_config(read_config(folder), kv_bits=kv_bits)
    bound = roofline(
        traffic,
        found.bandwidth.ceiling_gb_s,
        found.arithmetic.tflop_s if found.arithmetic else None,
        depth=depth,
        decoded=_decode(options) if measure else None,
    )
    return bound, folder


def _present(model: str, kv_bits: int | None) -> tuple[LoadOptions, Path]:
    """How to load a model that is on disk, and its folder, which may hold a config.json alone."""
    from dspark.engine import LoadOptions
    from dspark.errors import ModelNotFound
    from dspark.hub import demo, registry
    from dspark.hub.resolving import resolve
    from dspark.hub.shelves import spelled_out

    precision, folder = None, spelled_out(model)
    if model == registry.DEMO.id:
        on_disk = ((name, at) for name in demo.PRECISIONS if (at := demo.on_disk(name)) is not None)
        present = next(on_disk, None)
        if present is None:
            raise ModelNotFound("the demo model is not on this disk yet: run mlx-dspark race once, which fetches it")
        precision, folder = present
    elif not _has_config(folder) or any(folder.glob("*.safetensors")):
        folder = resolve(model, kind="model", offline=True)
    options = LoadOptions(model=model, drafter="none", mode="baseline", precision=precision, kv_bits=kv_bits)
    return options, folder


def _has_config(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file()
    except OSError:  # a name too long for a path
        return False


def _decode(options: LoadOptions) -> tuple[int, float | None]:
    """The depth in the middle of a short answer, and the tokens a second of it."""
    from dspark.decoding.events import Finished
    from dspark.decoding.request import Request, SpeculationOptions
    from dspark.engine import Engine

    engine = Engine()
    engine.load(options)
    prompt, plain = engine.encode_chat(PROMPT), SpeculationOptions(mode="baseline")
    warm_up, timed = (
        next(event.statistics for event in engine.generate(request) if isinstance(event, Finished))
        for request in (Request(prompt, tokens, speculation=plain, reuse=False) for tokens in (2, DECODED_TOKENS))
    )
    return warm_up.prompt_tokens + timed.completion_tokens // 2, timed.decode_tokens_per_second


def _cost_plots(folder: Path) -> list[Plot]:
    """What calibrate measured of the model in `folder`, if it did."""
    from dspark.hub.checkpoint import fingerprint, weight_files
    from dspark.tuning import profiles
    from dspark.tuning.plots import curves_plot

    profile = profiles.of_target(fingerprint(folder)[:16]) if weight_files(folder) else None
    if profile is None:
        return []
    curves = {f"at {level.depth} tokens": list(level.verify_ms.items()) for level in profile.curves.levels}
    title = f"verification, calibrated on {profile.measured.date[:10]}"
    return [curves_plot(curves, title=title, x_label="rows", y_label="ms")]


def _draw(bound: Roofline, model: str, folder: Path, plot: str) -> None:
    from dspark.commands import plotting
    from dspark.commands.rendering import print_lines, print_verbatim, stderr_console, stdout_console
    from dspark.tuning.plots import ceilings_plot, roofline_plot

    plots = [roofline_plot(bound, model), ceilings_plot(bound, model), *_cost_plots(folder)]
    if plot == plotting.TERMINAL:
        console = stdout_console()
        for each in plots:
            for line in ("", *plotting.lines(each, console.width)):
                print_verbatim(console, line)
        return
    plotting.write(plots, Path(plot))
    print_lines(stderr_console(), f"drawn into {plot}")
