"""Results as CSV: a row an arm and section, with what is needed to set it beside rows of other files."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dspark.racing.regression import Comparison
from dspark.racing.result import RaceResult
from dspark.racing.statistics import Interval, Ratio

STAMPED = ("chip", "gpu_cores", "memory_bytes", "os", "device", "mlx", "mlx_lm", "mlx_dspark", "git")


def to_csv(results: Sequence[RaceResult]) -> str:
    """All figures of `results`, with a head; what is unknown is left empty."""
    return _text(row for result in results for row in _rows(result))


def comparison_csv(comparisons: Sequence[Comparison]) -> str:
    """A row a change."""
    return _text(
        {
            "race": each.name,
            "arm": change.arm,
            "measure": change.measure,
            "prompts": change.prompts,
            "old": change.old,
            "new": change.new,
            "change": change.change,
            **_bounds("change", change.interval),
            "outcome": change.outcome,
        }
        for each in comparisons
        for change in each.changes
    )


def _rows(result: RaceResult) -> Iterable[dict[str, Any]]:
    loaded = result.loaded
    for entrant in result.entrants:
        for section, seen in result.table[entrant.label].items():
            if section not in result.sections:
                continue
            yield {
                "date": result.setup.date.isoformat(timespec="seconds"),
                **{key: result.stamp.get(key) for key in STAMPED},
                "model": loaded.model,
                "drafter": loaded.drafter and loaded.drafter.rsplit("/", 1)[-1],
                "dtype": loaded.dtype,
                "max_tokens": result.setup.max_tokens,
                "arm": entrant.label,
                "settings": entrant.speculation.describe(),
                "class": section.partition("@")[0],
                "depth": _depth(result, section),
                "trials": seen.trials,
                "tokens_per_second": seen.tokens_per_second,
                "decode_tokens_per_second": seen.decode_tokens_per_second,
                "prefill_s": seen.prefill_s,
                "decode_s": seen.decode_s,
                "total_s": seen.total_s,
                "spread": seen.spread,
                **_ratio("ratio", seen.end_to_end),
                **_ratio("decode_ratio", seen.decode),
                "accept_len": seen.accept_len,
                "target_forwards": seen.target_forwards,
                "verdict": result.against_baseline(entrant.label),
                "error": result.failures.get(entrant.label),
            }


def _depth(result: RaceResult, section: str) -> int | None:
    """Tokens before the questions of `section`; None where it takes several depths together."""
    members = result.sections[section]
    depths = {prompt.depth for prompt in result.prompts if prompt.section in members}
    return depths.pop() if len(depths) == 1 else None


def _ratio(name: str, ratio: Ratio | None) -> dict[str, Any]:
    if ratio is None:
        return {name: None, **_bounds(name, None)}
    return {name: ratio.value, **_bounds(name, ratio.interval)}


def _bounds(name: str, interval: Interval | None) -> dict[str, Any]:
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {f"{name}_low": low, f"{name}_high": high}


def _text(rows: Iterable[Mapping[str, Any]]) -> str:
    out, writer = io.StringIO(), None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(out, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
    return out.getvalue()
