"""A race, a suite of races and a comparison as JSON, and how an export is written."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dspark import __version__
from dspark.errors import StorageError
from dspark.racing.regression import Comparison
from dspark.racing.result import SCHEMA, RaceResult
from dspark.racing.series import Series
from dspark.racing.statistics import Figures, Ratio


def to_json(result: RaceResult) -> str:
    """The whole result as one JSON document, ASCII, without NaN or infinity (null instead)."""
    return dumped(document(result))


def dumped(value: Any) -> str:
    """`value`, dataclasses included, as JSON text as in `to_json`."""
    return _laid_out(_plain(value)) + "\n"


def document(result: RaceResult) -> dict[str, Any]:
    """What the JSON holds; keys are added to, and renamed only with `schema`."""
    loaded = result.loaded
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": result.setup.command,
        "date": result.setup.date.isoformat(timespec="seconds"),
        "interrupted": result.interrupted,
        "stamp": result.stamp,
        "pair": {
            "model": loaded.model,
            "target": Path(loaded.target).name,
            "drafter": None if loaded.drafter is None else Path(loaded.drafter).name,
            "family": loaded.family,
            "dtype": loaded.dtype,
            "quantization": loaded.quantization,
            "kv_bits": loaded.kv_bits,
            "drafter_bits": loaded.drafter_bits,
            "drafter_window": loaded.drafter_window,
            "sdpa_split": loaded.sdpa_split,
            "notes": loaded.notes,
        },
        "settings": {
            "max_tokens": result.setup.max_tokens,
            "trials": result.setup.trials,
            "seed": result.setup.seed,
            "cooldown_s": result.setup.cooldown_s,
            "sampling": None if result.setup.sampling.temperature == 0 else result.setup.sampling,
        },
        "arms": [
            {
                "label": entrant.label,
                "resolved": entrant.speculation,
                "error": result.failures.get(entrant.label),
                "verdict": result.against_baseline(entrant.label),
                "repeatable": result.repeatable(entrant.label),
            }
            for entrant in result.entrants
        ],
        "prompts": [{"class": prompt.klass, "depth": prompt.depth, "prompt": prompt.text} for prompt in result.prompts],
        "summary": {
            "verdict": result.verdict,
            "ratio": _each(result, lambda seen: seen.end_to_end and seen.end_to_end.value),
            "ratio_interval": _each(result, lambda seen: _bounds(seen.end_to_end)),
            "decode_ratio": _each(result, lambda seen: seen.decode and seen.decode.value),
            "decode_ratio_interval": _each(result, lambda seen: _bounds(seen.decode)),
            "accept_len": _each(result, lambda seen: seen.accept_len),
            "figures": _each(result, _figures),
        },
        "checks": [
            {
                "arm": check.arm,
                "against": check.against,
                "prompt": check.prompt,
                "trial": check.trial,
                "outcome": check.outcome,
                "compared": check.compared,
                "length": check.length,
                "evidence": check.evidence,
            }
            for check in result.checks
        ],
        "tokens": {str(token): text for token, text in sorted(result.spelling.items())},
        "conditions": result.conditions,
        "warnings": result.warnings,
        "trials": [
            {
                "prompt": trial.prompt,
                "class": result.prompts[trial.prompt].klass,
                "depth": result.prompts[trial.prompt].depth,
                "arm": trial.arm,
                "trial": trial.number,
                "prefill_s": trial.prefill_s,
                "decode_s": trial.decode_s,
                "total_s": trial.total_s,
                "finish_reason": trial.reason,
                "tokens": trial.tokens,
                "text": trial.text,
                "statistics": trial.statistics,
            }
            for trial in result.trials
        ],
    }


def series_document(series: Series) -> dict[str, Any]:
    """A suite: every race under its name, with its state and the document of its result where there is one."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": series.command,
        "date": series.date.isoformat(timespec="seconds"),
        "interrupted": series.interrupted,
        "races": [
            {
                "name": entry.name,
                "state": entry.state,
                "error": entry.error,
                "result": None if entry.result is None else document(entry.result),
            }
            for entry in series.entries
        ],
    }


def comparison_document(comparisons: Sequence[Comparison], bound: float) -> dict[str, Any]:
    """What `race --compare` found."""
    races = [{**vars(each), "lost": each.lost} for each in comparisons]
    return {"schema": SCHEMA, "version": __version__, "fail_below": bound, "comparisons": races}


def write(text: str, path: Path) -> None:
    """Write an export; what is no Unicode text (an undecodable argument in the command) as escapes. StorageError."""
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; give another file") from error


def _each(result: RaceResult, pick: Callable[[Figures], Any]) -> dict[str, dict[str, Any]]:
    """arm → class (and `overall`) → what `pick` makes of the figures."""
    return {arm: {klass: pick(seen) for klass, seen in row.items()} for arm, row in result.table.items()}


def _bounds(ratio: Ratio | None) -> tuple[float, float] | None:
    return None if ratio is None or ratio.interval is None else (ratio.interval.low, ratio.interval.high)


def _figures(seen: Figures) -> dict[str, Any]:
    ratios = {"end_to_end", "decode", "accept_len"}  # stand under keys of their own
    return {each.name: getattr(seen, each.name) for each in dataclasses.fields(seen) if each.name not in ratios}


def _plain(value: Any) -> Any:
    """Dataclasses, mappings and tuples as JSON types; a float that JSON cannot say as None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _laid_out(value: Any, margin: str = "") -> str:
    """Indented JSON, but lists without a list or an object in them on one line: token ids would take a line each."""
    inner = margin + " "
    if isinstance(value, dict) and value:
        lines = (f"{inner}{json.dumps(key)}: {_laid_out(each, inner)}" for key, each in value.items())
        return "{\n" + ",\n".join(lines) + f"\n{margin}}}"
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        return "[\n" + ",\n".join(inner + _laid_out(each, inner) for each in value) + f"\n{margin}]"
    return json.dumps(value, allow_nan=False)
