"""A race in a running server, seen from here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dspark.commands.rendering import print_lines, print_table, stderr_console, stdout_console
from dspark.errors import DSparkError, NetworkError

if TYPE_CHECKING:
    from dspark.client import Client
    from dspark.racing.arms import Arm

DIVERGED = 3


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class ArmDone(_Wire):
    """What the server says at the end of an arm."""

    arm: int
    label: str
    completion_tokens: int | None = None
    decode_tokens_per_sec: float | None = None
    accept_len: float | None = None
    error: str | None = None


class Token(_Wire):
    """A token of either arm at the first difference."""

    text: str | None = None


class Outcome(_Wire):
    """How an arm compares with the reference."""

    arm: int
    label: str
    outcome: str | None = None
    position: int | None = None
    expected: Token | None = None
    found: Token | None = None
    gap: float | None = None
    threshold: float | None = None


class Verdict(_Wire):
    """What the race came to."""

    outcome: str | None = None
    arms: list[Outcome] = []


Told = TypeVar("Told", bound=_Wire)


def race_there(server: Client, arms: Sequence[Arm], prompts: Sequence[str], max_tokens: int) -> int:
    """Race each prompt in turn and print what came of it; exit code 0 identical or tied, 1 an arm failed, 3 diverged.

    Raises:
        DSparkError: the server refuses, or the race breaks off.
    """
    code = 0
    for prompt in prompts:
        body = {"prompt": prompt, "arms": [_arm(one) for one in arms] or [{"mode": "auto"}], "max_tokens": max_tokens}
        done, verdict = _followed(server.race(body))
        _print(prompt, done, verdict)
        failed = any(arm.error is not None for arm in done)
        code = max(code, DIVERGED if verdict.outcome == "diverged" else int(failed))
    return code


def _arm(arm: Arm) -> dict[str, Any]:
    options = arm.options
    said = {"mode": options.mode, "cap": options.cap, "lookup": options.lookup, "confidence": options.confidence}
    return {name: value for name, value in said.items() if value is not None}


def _followed(events: Iterator[dict[str, Any]]) -> tuple[list[ArmDone], Verdict]:
    """The end of every arm, and the verdict."""
    said, done = stderr_console(), []
    for event in events:
        match event.get("type"):
            case "arm_start":
                print_lines(said, f"{event.get('label')} ...", style="dim")
            case "arm_done":
                done.append(_read(ArmDone, event))
            case "verdict":
                return done, _read(Verdict, event)
    raise DSparkError("the server's race broke off before its verdict; look into its log")


def _read(kind: type[Told], event: dict[str, Any]) -> Told:
    try:
        return kind.model_validate(event)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise NetworkError(
            f"the race's {event['type']} has a wrong {where}: this is no mlx-dspark server, or one of another version"
        ) from error


def _print(prompt: str, done: Sequence[ArmDone], verdict: Verdict) -> None:
    console = stdout_console()
    shown = " ".join(prompt.split())
    outcomes = {arm.arm: arm for arm in verdict.arms}
    rows = [
        (
            one.label,
            _figure(one.completion_tokens, "d"),
            _figure(one.decode_tokens_per_sec, ".1f"),
            _figure(one.accept_len, ".2f"),
            str(one.error or (outcomes[one.arm].outcome if one.arm in outcomes else None) or "the reference"),
        )
        for one in done
    ]
    figures = ("tokens", "tok/s", "tokens a round")
    print_lines(console, shown if len(shown) <= 72 else f"{shown[:69]}...")
    print_table(console, ("arm", *figures, "output"), rows, figures)
    for arm in verdict.arms:
        if arm.position is not None:
            print_lines(console, _difference(arm))
    nothing = "none, as an arm failed" if any(arm.error for arm in done) else "none, as there was nothing to compare"
    print_lines(console, f"verdict: {verdict.outcome or nothing}")


def _difference(arm: Outcome) -> str:
    due, came = (None if token is None else token.text for token in (arm.expected, arm.found))
    gap, tie = arm.gap, arm.threshold
    weighed = "" if gap is None else f"; the target's two best lie {gap:.3g} apart"
    weighed += "" if gap is None or tie is None else f", {tie:.3g} is a tie"
    return f"{arm.label}: token {arm.position} is {came!r} where {due!r} was due{weighed}"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
