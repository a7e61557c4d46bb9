"""The whole matrix of `tests/test_families.py`, not only its pairs, for some model types. Prints JSON.

python tests/benchmarks/matrix.py trim-llama ring-gemma3_text recorded-qwen3_5

Some minutes a model type. A case is `tied` where the answer differs from mlx-lm's at a place whose two best
logits are closer than rounding; such a case is compared no further.
"""

import argparse
import json
import os
import sys
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from dspark.machine import stamp

MATRIX = Path(__file__).parents[1] / "test_families.py"
OUTCOMES = {"passed": "passed", "failed": "failed", "skipped": "tied"}


class Counts:
    """Counts what became of each case, by kind of cache and model type."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = {}
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        case = report.nodeid.partition("[")[2].rstrip("]")
        if report.when != "call" and not report.failed:
            return
        self.outcomes.setdefault("-".join(case.split("-")[:2]), Counter())[OUTCOMES[report.outcome]] += 1
        if report.failed:
            self.failures.append(case)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="+", help="kind of cache and model type, such as trim-llama")
    args = parser.parse_args()
    os.environ["MLX_DSPARK_FULL_MATRIX"] = "1"
    at, counts = stamp(), Counts()
    chosen = " or ".join(f"answer_is and {name}-" for name in args.types)
    with redirect_stdout(sys.stderr):
        pytest.main(["-q", "-p", "no:cacheprovider", "--timeout", "0", str(MATRIX), "-k", chosen], plugins=[counts])
    rows: list[dict[str, Any]] = [
        {"type": name, "cases": found.total(), **{outcome: found[outcome] for outcome in OUTCOMES.values()}}
        for name, found in counts.outcomes.items()
    ]
    report = {
        "stamp": at,
        "command": " ".join(["tests/benchmarks/matrix.py", *args.types]),
        "types": rows,
        "failures": counts.failures,
    }
    print(json.dumps(report, indent=1))
    return 1 if counts.failures else 0


if __name__ == "__main__":
    sys.exit(main())
