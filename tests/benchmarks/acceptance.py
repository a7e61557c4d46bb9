"""Accepted tokens a round over the reference's twelve prompts, decoded live. Prints JSON.

python tests/benchmarks/acceptance.py tests/data/acceptance-8k.json
python tests/benchmarks/acceptance.py HEAD_FOLDER/acceptance.json --drafter HEAD_FOLDER
"""

import argparse
import json
from pathlib import Path
from typing import Any

from dspark.decoding.events import Finished, RoundCommitted
from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import Engine, LoadOptions
from dspark.hub import demo
from dspark.machine import stamp


def decode(engine: Engine, prompt: dict[str, Any], cap: int) -> tuple[int, tuple[int, ...]]:
    """Rounds until the reference's answer is covered, and the tokens decoded.

    The reference lets its last round run past the budget, so up to `cap` more tokens are decoded here.
    """
    request = Request(
        engine.encode_chat(prompt["prompt"]),
        max_tokens=len(prompt["output_ids"]) + cap,
        speculation=SpeculationOptions(engine.loaded.modes[-1], cap=cap, lookup=False),
    )
    after_first, rounds, settled = len(prompt["output_ids"]) - 1, 0, 0
    tokens: tuple[int, ...] = ()
    for event in engine.generate(request):
        if isinstance(event, RoundCommitted) and event.index > 0 and settled < after_first:
            rounds += 1
            settled += event.accepted + 1
        if isinstance(event, Finished):
            tokens = event.tokens
    return rounds, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--drafter", help="default: the shipped head")
    args = parser.parse_args()
    reference = json.loads(args.reference.read_text())
    engine = Engine()
    if args.drafter:
        engine.load(LoadOptions(model=str(demo.target("fp32")), drafter=args.drafter))
    else:
        engine.load(LoadOptions(precision="fp32"))
    rows = []
    for prompt in reference["prompts"]:
        rounds, tokens = decode(engine, prompt, reference["cap"])
        expected = [t for t in prompt["output_ids"] if t not in engine.loaded.eos]
        same = list(tokens[: len(expected)]) == expected
        rows.append({"class": prompt["class"], "rounds": rounds, "reference": prompt["rounds"], "same_ids": same})
    ours, theirs = sum(row["rounds"] for row in rows), sum(row["reference"] for row in rows)
    drafter = Path(args.drafter).name if args.drafter else "shipped"
    summary = {"drafter": drafter, "rounds": ours, "reference_rounds": theirs, "ratio": round(ours / theirs, 4)}
    print(json.dumps({"stamp": stamp(), **summary, "prompts": rows}, indent=1))


if __name__ == "__main__":
    main()
