"""A regression gate for CI: the outputs must agree, and speculation must not have lost its speed-up.

    python tests/benchmarks/gate.py race.json --baseline results/gate-apple-silicon.json --fail-below 0.95

Ratios are compared, not seconds: each is against plain decoding of the same run, so a slower runner changes nothing. An
arm fails when the whole of its interval lies below the old ratio times the limit. Without a baseline only the verdict
is checked.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def verdict_fault(race: dict[str, Any]) -> str | None:
    """Why the outputs cannot be trusted, or None."""
    verdict = race["summary"]["verdict"]
    return None if verdict in ("identical", "tied") else f"verdict {verdict}"


def regressions(old: dict[str, Any], new: dict[str, Any], limit: float) -> list[str]:
    """Arms of both runs whose overall ratio fell by more than the limit, beyond their interval."""
    faults = []
    for arm, ratios in old["summary"]["ratio"].items():
        before, interval = ratios["overall"], new["summary"]["ratio_interval"].get(arm, {}).get("overall")
        if before is not None and interval is not None and interval[1] < limit * before:
            faults.append(f"{arm}: {before:.2f} before, at most {interval[1]:.2f} now")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("race", type=Path)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--fail-below", type=float, default=0.95)
    args = parser.parse_args()
    race = json.loads(args.race.read_text())
    faults = [fault for fault in [verdict_fault(race)] if fault]
    if args.baseline is None or not args.baseline.exists():
        print("no baseline yet: only the verdict is checked")
    else:
        faults += regressions(json.loads(args.baseline.read_text()), race, args.fail_below)
    if faults:
        sys.exit("; ".join(faults))
    print("passed")


if __name__ == "__main__":
    main()
