"""Render the tables of README.md from the registry and from the results beside this file.

python results/render.py            # rewrite the tables
python results/render.py --check    # exit 1 if they are not up to date
"""

import argparse
import json
import math
import re
import statistics
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from dspark.hub.registry import PAIRS
from dspark.targets.survey import survey

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
RACE = HERE / "race-demo-reference.json"
# Races of every cap and of what was derived, which is in the shipped profiles.
SWEEPS = {"fp32": HERE / "sweep-demo-fp32.json", "q4": HERE / "sweep-demo-q4.json"}
PROFILES = HERE.parent / "profiles"
TURNS = HERE / "turns-demo.json"


def pairs() -> str:
    """The registry as a table, by the memory that a pair is said to need."""
    rows = ["| memory | target | drafter | mode | speed-up | measured by |", "|---|---|---|---|---|---|"]
    for pair in sorted(PAIRS, key=lambda pair: pair.peak_ram_gb):
        if pair.published_speedup is None:
            continue
        rows.append(
            f"| {pair.peak_ram_gb:g} GB | `{pair.target}` | `{pair.drafter}` | {pair.mode} "
            f"| {pair.published_speedup} | {pair.measured_by} |"
        )
    return "\n".join(rows)


def families() -> str:
    """mlx-lm's model types by how speculation runs on them."""
    words = {
        "trim": "by trimming",
        "recorded": "from a recording",
        "replay": "by replaying",
        "refused": "not at all: runs plain",
    }
    rows = [f"| rejected rows are taken back | model types of mlx-lm {version('mlx-lm')} |", "|---|---|"]
    for method, word in words.items():
        names = ", ".join(each.model_type for each in survey() if each.method == method)
        rows.append(f"| {word} | {names or 'none'} |")
    return "\n".join(rows)


def figure(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def race() -> str:
    """The committed race of the demo pair: command, stamp, a row a class, the verdict."""
    result = json.loads(RACE.read_text(encoding="utf-8"))
    stamp, summary = result["stamp"], result["summary"]
    arms = [arm["label"] for arm in result["arms"]]
    head = "".join(f" {arm}: tok/s |" for arm in arms) + "".join(
        f" {arm}: ratio (95 %) | tokens a round |" for arm in arms[1:]
    )
    lines = [
        f"```sh\n{result['command']}\n```\n",
        f"| class |{head}",
        "|---|" + "---:|" * (len(arms) + 2 * (len(arms) - 1)),
    ]
    for klass in summary["ratio"][arms[0]]:
        cells = [figure(summary["figures"][arm][klass]["tokens_per_second"], ".1f") for arm in arms]
        for arm in arms[1:]:
            interval = summary["ratio_interval"][arm][klass]
            ratio = figure(summary["ratio"][arm][klass])
            cells += [
                ratio if interval is None else f"{ratio} ({interval[0]:.2f} to {interval[1]:.2f})",
                figure(summary["accept_len"][arm][klass]),
            ]
        lines.append(f"| {klass} | " + " | ".join(cells) + " |")
    compared = sum(check["compared"] for check in result["checks"] if check["arm"] != check["against"])
    lines.append(
        f"\nVerdict: **{summary['verdict']}** ({compared} tokens compared). Rates and ratios are end to end, prompt "
        f"included; the interval is a bootstrap over prompts and trials. {result['date'][:10]}, {stamp['chip']}, "
        f"{stamp['cores']} cores, {stamp['os']}, mlx {stamp['mlx']} on the {stamp['device']} with {stamp['blas']}, "
        f"mlx-lm {stamp['mlx_lm']}, {result['pair']['dtype']}, revision {stamp['git']}. "
        f"The whole report: `results/{RACE.with_suffix('.md').name}`."
    )
    return "\n".join(lines)


def sweeps() -> str:
    """What calibrate derived for each class beside the best fixed cap of a race of all caps, and the controller."""
    lines = [
        "| precision | class | best fixed cap | derived | derived over best | `auto` | lookup alone |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    sources = []
    for precision, path in SWEEPS.items():
        race = json.loads(path.read_text(encoding="utf-8"))
        ratio = race["summary"]["ratio"]
        (auto,) = (label for label in ratio if label in ("dspark", "auto"))
        derived = _profile(precision)["derived"]
        for klass in ratio[auto]:
            ours = _ran(race, derived["classes"].get(klass, derived))
            best = max(_caps(race), key=lambda arm, ratio=ratio, klass=klass: ratio[arm][klass])
            mean, error = _over(race["trials"], klass, ours, best)
            lines.append(
                f"| {precision} | {klass} | {_cap(race, best)} ({ratio[best][klass]:.2f}) "
                f"| {_cap(race, ours)} ({ratio[ours][klass]:.2f}) | {mean:.3f} ± {error:.3f} "
                f"| {ratio[auto][klass]:.2f} | {ratio['lookup'][klass]:.2f} |"
            )
        sources.append(
            f"`results/{path.with_suffix('.md').name}` ({race['date'][:10]}, revision {race['stamp']['git']}, "
            f"{len(race['prompts'])} prompts, {race['settings']['trials']} trials)"
        )
    lines.append(
        "\nIn brackets the speed over plain decoding, end to end; ± is the standard error over prompts and trials. "
        f"{'; '.join(sources)}. What was derived (`profiles/`) comes from the built-in prompts, which the races ask "
        "too; each was in force in its race."
    )
    return "\n".join(lines)


def _settings(race: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {arm["label"]: arm["resolved"] for arm in race["arms"]}


def _caps(race: dict[str, Any]) -> list[str]:
    """The arms with a fixed cap of the drafter's and nothing else, and plain decoding."""
    return [
        label
        for label, setting in _settings(race).items()
        if label not in ("auto", "lookup") and setting["cap"] != "auto" and setting["confidence"] == 0
    ]


def _profile(precision: str) -> dict[str, Any]:
    """The shipped profile of the demo pair in a precision."""
    dtype = {"fp32": "float32", "q4": "4 bits"}[precision]
    found = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(PROFILES.glob("demo-*.yaml")))
    (profile,) = (each for each in found if each["measured"]["dtype"] == dtype)
    return profile


def _ran(race: dict[str, Any], derived: dict[str, Any]) -> str:
    """The arm that ran what was derived."""
    wanted = (derived["cap"], derived["lookup"], derived["confidence"])
    for label, setting in _settings(race).items():
        plain = derived["cap"] == 0 and label == "baseline"
        if plain or (setting["cap"], setting["lookup"], setting["confidence"]) == wanted:
            return label
    raise SystemExit(f"no arm ran {wanted} (cap, lookup, confidence): race it, or calibrate and sweep again")


def _cap(race: dict[str, Any], label: str) -> str:
    setting = _settings(race)[label]
    if setting["cap"] == 0:
        return "plain"
    return f"{setting['cap']}" + (f", confidence {setting['confidence']:g}" if setting["confidence"] else "")


def _over(trials: list[dict[str, Any]], klass: str, ours: str, theirs: str) -> tuple[float, float]:
    """Rate of one arm over another's, paired by prompt and trial: the geometric mean and its standard error."""
    if ours == theirs:
        return 1.0, 0.0
    seconds = {(t["arm"], t["prompt"], t["trial"]): t["total_s"] for t in trials if klass in (t["class"], "overall")}
    pairs = {(prompt, trial) for _, prompt, trial in seconds}
    logs = [math.log(seconds[theirs, *pair] / seconds[ours, *pair]) for pair in pairs]
    mean = math.exp(statistics.fmean(logs))
    return mean, mean * statistics.stdev(logs) / len(logs) ** 0.5


def turns() -> str:
    """First-token times of a conversation's turns, with the prefix cache and without."""
    result = json.loads(TURNS.read_text(encoding="utf-8"))
    stamp = result["stamp"]
    lines = [
        "| turn | prompt tokens | of them read | first token: s | without the cache: s | share |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in result["turns"]:
        kind, prompt, warm, cold = row["kind"], row["prompt_tokens"], row["warm_s"], row["cold_s"]
        lines.append(
            f"| {kind} | {prompt} | {prompt - row['cached_tokens']} | {warm:.2f} | {cold:.2f} | {warm / cold:.1%} |"
        )
    equal = sum(row["ids_equal"] for row in result["turns"])
    where = f"{stamp['date'][:10]}, {stamp['chip']}, {stamp['cores']} cores, {stamp['os']}, mlx {stamp['mlx']}"
    lines.append(
        f"\nIds equal to those without the cache in {equal} of {len(result['turns'])} turns. {result['model']} "
        f"({result['dtype']}), {where} on the {stamp['device']} with {stamp['blas']}, revision {stamp['git']}: "
        f"`tests/benchmarks/turns.py --precision fp32`, `results/{TURNS.name}`."
    )
    return "\n".join(lines)


def rendered(text: str) -> str:
    """`text` with every block between `<!-- name -->` and `<!-- /name -->` filled."""
    for name, block in (("pairs", pairs), ("race", race), ("sweeps", sweeps), ("turns", turns), ("families", families)):
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, count = pattern.subn(lambda found, block=block: f"{found[1]}{block()}\n{found[2]}", text)
        if count != 1:
            raise SystemExit(f"README.md has {count} blocks named {name}, not one")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    before = README.read_text(encoding="utf-8")
    after = rendered(before)
    if check and before != after:
        sys.exit("README.md is not up to date: run python results/render.py")
    if not check:
        README.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
