"""A race in a running server, seen from here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dspark.commands.rendering import print_lines, print_table, stderr_console, stdout_console
from dspark.errors import DSparkError

if TYPE_CHECKING:
    from dspark.client import Client
    from dspark.racing.arms import Arm

DIVERGED = 3


def race_there(server: Client, arms: Sequence[Arm], prompts: Sequence[str], max_tokens: int) -> int:
    """Race each prompt in turn and print what came of it; exit code 0 identical or tied, 3 diverged.

    Raises:
        DSparkError: the server refuses, or the race breaks off.
    """
    code = 0
    for prompt in prompts:
        body = {"prompt": prompt, "arms": [_arm(one) for one in arms] or [{"mode": "auto"}], "max_tokens": max_tokens}
        done, verdict = _followed(server.race(body))
        _print(prompt, done, verdict)
        code = max(code, DIVERGED if verdict.get("outcome") == "diverged" else 0)
    return code


def _arm(arm: Arm) -> dict[str, Any]:
    options = arm.options
    said = {"mode": options.mode, "cap": options.cap, "lookup": options.lookup, "confidence": options.confidence}
    return {name: value for name, value in said.items() if value is not None}


def _followed(events: Iterator[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The end of every arm, and the verdict."""
    said, done = stderr_console(), []
    for event in events:
        match event.get("type"):
            case "arm_start":
                print_lines(said, f"{event.get('label')} ...", style="dim")
            case "arm_done":
                done.append(event)
            case "verdict":
                return done, event
    raise DSparkError("the server's race broke off before its verdict; look into its log")


def _print(prompt: str, done: Sequence[dict[str, Any]], verdict: dict[str, Any]) -> None:
    console = stdout_console()
    shown = " ".join(prompt.split())
    outcomes = {arm.get("arm"): arm for arm in verdict.get("arms") or []}
    rows = [
        (
            str(one.get("label")),
            _figure(one.get("completion_tokens"), "d"),
            _figure(one.get("decode_tokens_per_sec"), ".1f"),
            _figure(one.get("accept_len"), ".2f"),
            str(one.get("error") or outcomes.get(one.get("arm"), {}).get("outcome") or "the reference"),
        )
        for one in done
    ]
    figures = ("tokens", "tok/s", "tokens a round")
    print_lines(console, shown if len(shown) <= 72 else f"{shown[:69]}...")
    print_table(console, ("arm", *figures, "output"), rows, figures)
    for arm in outcomes.values():
        if arm.get("position") is not None:
            print_lines(console, _difference(arm))
    print_lines(console, f"verdict: {verdict.get('outcome') or 'none, as an arm failed'}")


def _difference(arm: dict[str, Any]) -> str:
    due, came = ((arm.get(name) or {}).get("text") for name in ("expected", "found"))
    gap = arm.get("gap")
    weighed = "" if gap is None else f"; the target's two best lie {gap:.3g} apart, {arm.get('threshold'):.3g} is a tie"
    return f"{arm.get('label')}: token {arm['position']} is {came!r} where {due!r} was due{weighed}"


def _figure(value: Any, form: str) -> str:
    return "-" if not isinstance(value, int | float) else format(value, form)
