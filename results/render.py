"""Render the tables of README.md from the registry and from the results beside this file.

python results/render.py            # rewrite the tables
python results/render.py --check    # exit 1 if they are not up to date
"""

import argparse
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

from dspark.hub.registry import PAIRS
from dspark.targets.survey import survey

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
RACE = HERE / "race-demo-reference.json"


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


def rendered(text: str) -> str:
    """`text` with every block between `<!-- name -->` and `<!-- /name -->` filled."""
    for name, block in (("pairs", pairs), ("race", race), ("families", families)):
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
