"""How the terminal shows a machine, and what a model could do on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dspark.machine.capability import Capability
    from dspark.machine.facts import Chip
    from dspark.machine.watch import Conditions
    from dspark.targets.traffic import CacheLayers
    from dspark.tuning.roofline import Ceiling, Roofline

GIB = 1024**3
NAME_WIDTH = 11
KINDS = {
    "full": "full attention",
    "latent": "latent attention",
    "window": "sliding window",
    "recurrent": "recurrent state",
}

Row = tuple[str, str]


def show(found: Capability) -> None:
    """Print the machine, what it can do, and what disturbs it."""
    _print([*_machine(found), *_measured(found), *_conditions(found.conditions)])


def show_model(name: str, found: Roofline) -> None:
    """Print what a token costs and the ceilings that follow; the verdict comes last."""
    _print([("", ""), ("model", name), *_traffic(found), *_ceilings(found), ("verdict", found.verdict)])


def _print(rows: list[Row]) -> None:
    from dspark.commands.rendering import print_lines, stdout_console

    console = stdout_console()
    for name, value in rows:
        print_lines(console, f"{name:<{NAME_WIDTH}}{value}", hanging=NAME_WIDTH)


def _machine(found: Capability) -> Iterator[Row]:
    system, memory, runtime = found.machine.system, found.machine.memory, found.machine.runtime
    kinds = [kind for kind, so in (("Rosetta", system.translated), ("virtual", system.virtual)) if so]
    yield "chip", found.machine.chip.name or "unknown"
    yield "cores", _cores(found.machine.chip)
    yield "system", ", ".join([system.label, system.architecture or "unknown architecture", *kinds])
    yield "memory", f"{_gib(memory.total_bytes)}, {_gib(memory.available_bytes)} available"
    yield "pressure", f"{memory.pressure or 'unknown'}, swap used {_gib(memory.swap_used_bytes)}"
    if memory.gpu_wired_limit_bytes:
        yield "gpu limit", f"{_gib(memory.gpu_wired_limit_bytes)}, set by iogpu.wired_limit_mb"
    yield "device", f"MLX {runtime.mlx or 'not installed'}, {(runtime.device or 'no device').upper()}"


def _measured(found: Capability) -> Iterator[Row]:
    moved = found.bandwidth
    reading = "" if moved.read_gb_s is None else f"; {moved.read_gb_s:g} GB/s where it only reads"
    yield "bandwidth", f"{moved.gb_s:g} GB/s measured: {moved.method}{reading}"
    if found.published:
        yield "published", f"{found.published.gb_s:g} GB/s: {found.published.method}"
    if found.arithmetic:
        yield "arithmetic", f"{found.arithmetic.tflop_s:g} TFLOP/s measured: {found.arithmetic.method}"


def _conditions(found: Conditions) -> Iterator[Row]:
    words = [
        {"mains": "mains", "battery": "battery", None: "power source unknown"}[found.power_source],
        f"{found.power_mode} power mode" if found.power_mode else "power mode unknown",
        f"thermal pressure {found.thermal or 'unknown'}",
    ]
    yield "power", ", ".join(words)


def _traffic(found: Roofline) -> Iterator[Row]:
    traffic = found.traffic
    parts = [f"output head {size(traffic.head_bytes)}"]
    if traffic.expert_bytes:
        parts.append(f"chosen experts {size(traffic.expert_bytes)}")
    of = {"checkpoint": "", "loaded": "", "config": ", by its config alone"}[traffic.source]
    yield "weights", f"{size(traffic.weight_bytes)} read per token, of {size(traffic.parameter_bytes)}{of}"
    yield "", f"with {', '.join(parts)}; scales of quantized layers counted, the embedding table not"
    for layers in traffic.caches:
        yield "cache", _cache(layers)


def _cache(layers: CacheLayers) -> str:
    plural = "layer" if layers.layers == 1 else "layers"
    text = f"{layers.layers} {plural} of {KINDS[layers.kind]}, "
    if layers.kind == "recurrent":
        return f"{text}{size(layers.state_bytes)} whatever the depth"
    text += f"{size(layers.row_bytes)} for each token"
    return text if layers.window_tokens is None else f"{text} of the newest {layers.window_tokens:,}"


def _ceilings(found: Roofline) -> Iterator[Row]:
    for name, ceiling in (("at most", found.start), ("", found.given), ("", found.window)):
        if ceiling is not None:
            yield name, _ceiling(ceiling, "full window" if ceiling is found.window else None)
    if found.standing:
        standing = found.standing
        yield (
            "measured",
            f"{standing.tokens_per_s:.3g} tokens/s at depth {standing.depth:,}: {standing.share:.0%} of it",
        )
    if found.free_rows is not None and found.free_rows >= 1:
        yield "verifying", f"up to {found.free_rows:,.0f} rows read the weights once before arithmetic takes longer"


def _ceiling(found: Ceiling, where: str | None) -> str:
    place = f"depth {found.depth:,}" + (f" ({where})" if where else "")
    return f"{found.tokens_per_s:.3g} tokens/s at {place}, {size(found.bytes_per_token)} a token"


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


def size(amount: int | None) -> str:
    """Bytes in a unit that suits them."""
    if amount is None:
        return "unknown"
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if amount >= 10**power:
            return f"{amount / 10**power:.3g} {unit}"
    return f"{amount} bytes"
