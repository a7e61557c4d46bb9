"""`mlx-dspark load`: what loading a pair takes here, measured; whether it would fit; or a load on a running server."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from dspark.commands.options import load_options, speculation_options, takes
from dspark.errors import UsageError
from dspark.settings import SETTINGS, Settings, api_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from dspark.hub.plan import Part
    from dspark.loading import LoadReport

INDENT = 16
# What a load request can say, and what belongs to one side alone.
REMOTE = (
    *("drafter", "mode", "kv_bits", "drafter_window", "warmup", "max_draft", "lookup_drafts", "confidence_threshold"),
    *("sdpa_split", "context_window", "memory_guard", "enable_thinking", "reasoning_effort"),
)
REMOTE_ONLY = ("memory_guard", "enable_thinking", "reasoning_effort", "api_key", "api_key_file")
LOCAL_ONLY = ("precision", "drafter_bits", "profile", "trust_remote_code")
VERDICTS = {
    "fits": "fits",
    "tight": "fits, with less than a tenth of the memory to spare",
    "not now": "would fit, but not beside what runs now: close other programs",
    "too large": "does not fit: take a smaller model or a quantization with fewer bits",
    "unknown": "cannot be said",
}


@takes(
    *("model", "drafter", "mode", "precision", "kv_bits", "drafter_bits", "drafter_window", "profile", "warmup"),
    *("sdpa_split", "trust_remote_code", "max_draft", "lookup_drafts", "confidence_threshold", "context_window"),
    *("memory_guard", "enable_thinking", "reasoning_effort", "api_key", "api_key_file"),
)
def load(
    settings: Settings,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say whether the pair would fit, and fetch nothing. Exits 1 if it does not.")
    ] = False,
    url: Annotated[
        str | None, Option(metavar="URL", help="Load it in the server that runs there, such as http://127.0.0.1:8080.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON, and nothing else on stdout.")] = False,
) -> int:
    """Find, fetch, load, probe and warm up a pair, each step measured.

    With --url the server keeps its own settings: only the model and the flags given here are sent.

    Examples:

        mlx-dspark load --model mlx-community/Qwen3-4B-8bit --dry-run

        mlx-dspark load --model mlx-community/Qwen3-4B-8bit --context-window 32768 --json
    """
    if url is not None:
        return _remote(settings, url, dry_run=dry_run, as_json=as_json)
    _refuse(settings, REMOTE_ONLY, "belongs to a running server: add --url")
    return _dry(settings, as_json=as_json) if dry_run else _local(settings, as_json=as_json)


def _local(settings: Settings, *, as_json: bool) -> int:
    from dspark.commands.rendering import print_json, print_lines, stderr_console, stdout_console
    from dspark.engine import Engine
    from dspark.loading import load as load_measured
    from dspark.loading import settled

    said = stderr_console()
    options, why = settled(load_options(settings))
    if why is not None:
        print_lines(said, why)
    report = load_measured(
        Engine(),
        options,
        speculation_options(settings),
        warmup=settings.model.warmup,
        entering=lambda step: print_lines(said, f"{step} ...", style="dim"),
    )
    for note in report.loaded.notes:
        print_lines(said, note)
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(stdout_console(), report)
    return 0


def _print_report(console: Console, report: LoadReport) -> None:
    from dspark.commands.rendering import print_table

    figures = ("seconds", "bytes", "MLX peak")
    rows = [(step.name, f"{step.seconds:.2f}", _amount(step.bytes), _amount(step.peak_bytes)) for step in report.steps]
    print_table(console, ("step", *figures), rows, figures)
    console.print()
    loaded, footprint = report.loaded, report.footprint
    window, cache = loaded.context_window, footprint.cache
    _print_rows(
        console,
        [
            ("pair", f"{loaded.model} ({loaded.dtype}), drafter {loaded.drafter or 'none'}"),
            ("modes", f"{', '.join(loaded.modes)}; by default {loaded.default.describe()}"),
            ("memory", f"{_amount(report.resident_bytes)} resident, {_amount(report.peak_bytes)} at the peak"),
            ("room", f"{_amount(report.cache_room_bytes)} left for the cache; {report.room.binds} binds"),
            ("a token", f"reads {_amount(footprint.bytes_per_token)} of weights, keeps {_amount(cache.per_token)}"),
            ("context", f"{window} tokens take {_amount(cache.at(window))}; {_fitting(report)}"),
        ],
    )


def _fitting(report: LoadReport) -> str:
    fitting, window = report.fitting_tokens, report.loaded.context_window
    if fitting is None:
        return "what fits here is unknown"
    return "all of it fits" if fitting == window else f"{fitting} fit: set --context-window {fitting} or less"


def _dry(settings: Settings, *, as_json: bool) -> int:
    from dspark.commands.rendering import print_json, stdout_console
    from dspark.hub import registry, shelves
    from dspark.loading import part_dict, parts_of, settled
    from dspark.machine import describe
    from dspark.machine.room import room

    options, _ = settled(load_options(settings))
    parts = parts_of(options)
    need, fetch = _total(part.weight_bytes for part in parts), _total(part.fetch_bytes for part in parts)
    here = room(describe())
    verdict = here.verdict(need)
    known = registry.find(options.model)
    disk = _free_disk(shelves.hub_cache())
    if as_json:
        print_json(
            {
                "model": options.model,
                "parts": [part_dict(part) for part in parts],
                "weight_bytes": need,
                "fetch_bytes": fetch,
                "disk_free_bytes": disk,
                "memory": {"limit_bytes": here.limit_bytes, "free_bytes": here.free_bytes, "binds": here.binds},
                "published": {"peak_gb": known.peak_ram_gb, "measured_by": known.measured_by} if known else None,
                "verdict": verdict,
            }
        )
        return 1 if verdict == "too large" else 0
    rows = [(part.role, _part_line(part)) for part in parts]
    rows.append(("memory", f"{_amount(need)} of weights; {_amount(here.limit_bytes)} at most, {here.binds}"))
    rows.append(("now free", _amount(here.free_bytes)))
    if known:
        rows.append(("published", f"{known.peak_ram_gb:g} GB at the peak, by {known.measured_by}"))
    if fetch:
        short = "" if disk is None or disk > fetch else ": too little, free some or set HF_HOME"
        rows.append(("disk", f"{_amount(disk)} free for {_amount(fetch)} to fetch{short}"))
    rows.append(("verdict", VERDICTS[verdict]))
    _print_rows(stdout_console(), rows)
    return 1 if verdict == "too large" else 0


def _part_line(part: Part) -> str:
    from dspark.hub import shelves

    if part.unknown:
        return f"{part.name}: {part.unknown}"
    where = f"on disk in {shelves.short(part.folder)}" if part.folder else f"{_amount(part.fetch_bytes)} to fetch"
    return f"{part.name}: {_amount(part.weight_bytes)} of weights, {where}"


def _remote(settings: Settings, url: str, *, dry_run: bool, as_json: bool) -> int:
    from dspark.client import Client
    from dspark.commands.rendering import print_json, stdout_console

    _refuse(settings, LOCAL_ONLY, "is the server's own to decide, and not for a request")
    if dry_run:
        raise UsageError("--dry-run looks at this machine; leave --url out")
    if settings.origin("model") == "default":
        raise UsageError("--url needs the model to load: give --model")
    given = settings.from_flags()
    body = {"model": _for_server(settings.model.model)}
    body |= {name: given[name] for name in REMOTE if name in given}
    if body.get("drafter_window") == "auto":  # how a request says it
        del body["drafter_window"]
    health: dict[str, Any] = {}
    with Client(url, api_key(settings)) as server, _Progress() as progress:
        for health in server.load(body):
            progress.show(health)
    if as_json:
        print_json(health)
        return 0
    rows = [(name, health.get(name)) for name in ("model", "mode", "drafter", "max_draft", "context_window")]
    warnings = health.get("warnings")
    rows += [("warning", warning) for warning in (warnings if isinstance(warnings, list) else [])]
    _print_rows(stdout_console(), [(name, str(value)) for name, value in rows if value is not None])
    return 0


class _Progress:
    """One line a phase on stderr; on a terminal that can be drawn on, the download's bytes move in one more."""

    def __init__(self) -> None:
        from dspark.commands.rendering import stderr_console

        self._console = stderr_console()
        self._phase: str | None = None
        self._status: Any = None
        if sys.stderr.isatty() and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._status = self._console.status("asking")

    def __enter__(self) -> _Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, health: dict[str, Any]) -> None:
        from dspark.commands.rendering import inert, print_lines

        phase = str(health.get("phase") or health.get("status"))
        if phase != self._phase:
            self._phase = phase
            print_lines(self._console, f"{phase.replace('_', ' ')} ...", style="dim")
        download = health.get("download")
        if self._status is not None and isinstance(download, dict):
            done, total, rate = (download.get(name) for name in ("bytes_done", "bytes_total", "rate"))
            line = f"{download.get('repo')}: {_amount(done)} of {_amount(total)}, {_amount(rate)}/s"
            self._status.update(inert(line))


def _refuse(settings: Settings, names: Sequence[str], why: str) -> None:
    for name in names:
        if settings.origin(name) == "flag":
            raise UsageError(f"{SETTINGS[name].flag} {why}")


def _for_server(model: str) -> str:
    """A folder under its full name: the server's working folder is another."""
    from dspark.hub.shelves import spelled_out

    path = spelled_out(model)
    return str(path.resolve()) if path.is_dir() else model


def _print_rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    from dspark.commands.rendering import print_lines

    for name, value in rows:
        print_lines(console, f"{name:<{INDENT}}{value}", hanging=INDENT)


def _total(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(size for size in known if size is not None)


def _free_disk(folder: Path) -> int | None:
    existing = next((path for path in (folder, *folder.parents) if path.exists()), None)
    try:
        return None if existing is None else shutil.disk_usage(existing).free
    except OSError:
        return None


def _amount(size: object) -> str:
    if isinstance(size, bool) or not isinstance(size, int | float):
        return "unknown"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:g} B"
