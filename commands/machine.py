"""`mlx-dspark machine`: the chip, its memory, and how fast that memory is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from dspark.machine.bandwidth import Bandwidth
    from dspark.machine.facts import Chip, Machine

GIB = 1024**3
BUSY_CORES = 0.3


def machine(
    as_json: bool = typer.Option(False, "--json", help="Print JSON, and nothing else on stdout."),
) -> None:
    """Describe this machine and measure its memory bandwidth, which bounds how fast a model can decode.

    Example: mlx-dspark machine --json
    """
    from dspark.commands.rendering import print_json, print_lines, stderr_console
    from dspark.machine import bandwidth, chips, describe, load

    found = describe()
    before = load.cpu_times()
    measured = bandwidth.measure(found)
    busy_cores = load.busy_cores(before, load.cpu_times())
    row = chips.published(found.chip.name, found.chip.gpu_cores)
    published = bandwidth.from_specification(row) if row else None
    if as_json:
        print_json(
            found.as_dict()
            | {
                "bandwidth": asdict(measured),
                "published_bandwidth": asdict(published) if published else None,
                "busy_cores": busy_cores,
            }
        )
    else:
        _print(found, measured, published)
    if busy_cores is not None and busy_cores > BUSY_CORES:
        note = f"other programs kept {busy_cores:g} cores busy meanwhile: measure again when they are done"
        print_lines(stderr_console(), note, style="yellow")


def _print(found: Machine, measured: Bandwidth, published: Bandwidth | None) -> None:
    from dspark.commands.rendering import print_lines, stdout_console

    system, memory, runtime = found.system, found.memory, found.runtime
    kinds = [kind for kind, so in (("Rosetta", system.translated), ("virtual", system.virtual)) if so]
    rows = [
        ("chip", found.chip.name or "unknown"),
        ("cores", _cores(found.chip)),
        ("system", ", ".join([system.label, system.architecture or "unknown architecture", *kinds])),
        ("memory", f"{_gib(memory.total_bytes)}, {_gib(memory.available_bytes)} available"),
        ("pressure", f"{memory.pressure or 'unknown'}, swap used {_gib(memory.swap_used_bytes)}"),
        ("device", f"MLX {runtime.mlx or 'not installed'}, {(runtime.device or 'no device').upper()}"),
        ("bandwidth", f"{measured.gb_s:g} GB/s measured: {measured.method}"),
    ]
    if memory.gpu_wired_limit_bytes:
        rows.append(("gpu limit", f"{_gib(memory.gpu_wired_limit_bytes)}, set by iogpu.wired_limit_mb"))
    if published:
        rows.append(("published", f"{published.gb_s:g} GB/s: {published.method}"))
    console = stdout_console()
    for name, value in rows:
        print_lines(console, f"{name:<11}{value}", hanging=11)


def _cores(chip: Chip) -> str:
    groups = [f"{group.count} {group.name or 'of one kind'}" for group in chip.groups if group.count]
    words = [f"{chip.cores if chip.cores is not None else 'unknown number of'} CPU"]
    if groups:
        words[0] += f" ({', '.join(groups)})"
    if chip.usable_cores is not None and chip.cores is not None and chip.usable_cores < chip.cores:
        words.append(f"{chip.usable_cores} usable by this process")
    if chip.gpu_cores is not None:
        words.append(f"{chip.gpu_cores} GPU")
    return ", ".join(words)


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"
