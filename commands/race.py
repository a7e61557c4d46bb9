"""`mlx-dspark race`: plain decoding against speculation on this machine, with a verdict on the output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from dspark.commands.options import takes
from dspark.commands.race_outputs import Outputs
from dspark.commands.race_run import run_comparison, run_race, run_suite
from dspark.commands.rendering import print_lines, stderr_console
from dspark.errors import UsageError
from dspark.settings import Settings, api_key

if TYPE_CHECKING:
    from dspark.racing.prompts import Prompt

EXPORTS = ("--json", "--markdown", "--csv")
KEYS = ("--api-key", "--api-key-file")


@takes(
    *("model", "drafter", "precision", "kv_bits", "drafter_bits", "drafter_window", "profile", "trust_remote_code"),
    *("sdpa_split", "api_key", "api_key_file"),
)
def race(
    settings: Settings,
    context: Context,
    arm: Annotated[
        list[str] | None,
        Option(
            metavar="ARM",
            help="baseline, lookup, dspark, dflash or auto; settings follow a colon: dspark:cap=4,lookup=off or "
            "dspark:confidence=0.3. Repeatable. Default: plain decoding against every mode of the pair.",
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None, Option(metavar="TEXT", help="A prompt of your own. Repeatable. Default: a built-in set.")
    ] = None,
    prompt_file: Annotated[
        list[Path] | None,
        Option(
            metavar="FILE",
            help='Prompts, one a line: text, or JSON lines {"prompt": "...", "class": "..."}. Repeatable.',
        ),
    ] = None,
    depth: Annotated[
        list[str] | None,
        Option(
            metavar="N,N",
            help="Tokens of other text before each prompt, 4k for 4096: each prompt at each depth. Default: 0.",
        ),
    ] = None,
    max_tokens: Annotated[int, Option(metavar="N", help="Longest answer, in tokens.")] = 64,
    trials: Annotated[int, Option(metavar="N", help="How often each arm answers each prompt.")] = 3,
    cooldown: Annotated[
        float, Option(metavar="SECONDS", help="Pause between answers, for a machine that heats up.")
    ] = 0.0,
    seed: Annotated[int, Option(metavar="N", help="Seed of the draws and of the bootstrap intervals.")] = 0,
    temperature: Annotated[
        float, Option(metavar="X", help="0 is greedy. Above, all arms draw with the same seed and must still agree.")
    ] = 0.0,
    top_p: Annotated[float, Option(metavar="X", help="Nucleus filter; 1 is off.")] = 1.0,
    top_k: Annotated[int, Option(metavar="N", help="Keep the N likeliest tokens; 0 is off.")] = 0,
    min_p: Annotated[float, Option(metavar="X", help="Drop tokens below X times the likeliest; 0 is off.")] = 0.0,
    suite: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="A suite in YAML (models, arms, prompts, depths, ...): a race for each model and depth, set up in "
            "that file and not by flags.",
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        Option(metavar="OLD NEW", help="Run nothing: compare two results of --json, prompt by prompt."),
    ] = None,
    fail_below: Annotated[
        float,
        Option(metavar="X", help="With --compare: exit 4 when new over old lies below X with its whole interval."),
    ] = 0.95,
    url: Annotated[
        str | None,
        Option(metavar="URL", help="Race in the server that runs there, with the model that it has loaded."),
    ] = None,
    json_file: Annotated[
        str | None, Option("--json", metavar="FILE", help="Write the result as JSON; - is stdout.")
    ] = None,
    markdown_file: Annotated[
        str | None, Option("--markdown", metavar="FILE", help="Write the tables as Markdown; - is stdout.")
    ] = None,
    csv_file: Annotated[
        str | None, Option("--csv", metavar="FILE", help="Write the figures as CSV; - is stdout.")
    ] = None,
) -> int:
    """Race plain decoding against speculation, and check that the output is the same.

    Exit code: 0 identical or tied, 3 diverged, 4 slower than --compare allows, 1 error, 2 usage, 130 interrupted (143
    by SIGTERM, 129 by SIGHUP). Of a suite the worst counts.

    Examples:

        mlx-dspark race

        mlx-dspark race --arm dspark:cap=2 --arm dspark:cap=4 --trials 5 --markdown race.md

        mlx-dspark race --depth 0,4k --csv depth.csv

        mlx-dspark race --suite suite.yaml --json suite.json

        mlx-dspark race --url http://127.0.0.1:8080 --arm dspark:cap=4

        mlx-dspark race --compare old.json new.json --fail-below 0.95
    """
    from dspark.racing.prompts import gather

    outputs = Outputs(json_file, markdown_file, csv_file)
    outputs.check()
    if url is not None:
        _stand_alone(context, "--url", "--arm", "--prompt", "--prompt-file", "--max-tokens", *KEYS, exports=())
        return _race_there(settings, url, arm or [], gather(prompt or [], prompt_file or []), max_tokens)
    for flag in KEYS:
        if settings.origin(flag[2:].replace("-", "_")) == "flag":
            raise UsageError(f"{flag} belongs to a running server: add --url")
    if compare is not None:
        _stand_alone(context, "--compare", "--fail-below")
        return run_comparison(*compare, fail_below, outputs)
    if context.get_parameter_source("fail_below").name == "COMMANDLINE":
        raise UsageError("--fail-below does nothing without --compare; leave it out, or give two results to compare")
    if suite is not None:
        from dspark.racing.suite import read_suite

        _stand_alone(context, "--suite")
        return run_suite(read_suite(suite), outputs)

    from dspark.decoding.request import Sampling
    from dspark.racing.arms import parse_all
    from dspark.racing.depth import parse_depths
    from dspark.racing.plan import Choice, Plan

    wanted = settings.model
    choice = Choice(
        wanted.model,
        wanted.drafter,
        precision=wanted.precision,
        kv_bits=wanted.kv_bits or None,
        drafter_bits=wanted.drafter_bits,
        drafter_window=wanted.drafter_window,
        sdpa_split=wanted.sdpa_split,
        profile=wanted.profile,
        trust_remote_code=wanted.trust_remote_code,
    )
    plan = Plan(
        choices=(choice,),
        arms=tuple(parse_all(arm)) if arm else None,
        prompts=tuple(gather(prompt or [], prompt_file or [])),
        depths=parse_depths(depth or ["0"]),
        max_tokens=max_tokens,
        trials=trials,
        seed=seed,
        cooldown_s=cooldown,
        sampling=Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed),
    )
    if settings.origin("model") == "default":
        said = "no --model given: racing the demo pair (SmolLM2-135M-Instruct, for a first look)"
        print_lines(stderr_console(), said)
    return run_race(plan, outputs)


def _race_there(settings: Settings, url: str, arms: list[str], prompts: Sequence[Prompt], max_tokens: int) -> int:
    from dspark.client import Client
    from dspark.commands.race_remote import race_there
    from dspark.racing.arms import parse_all

    # Plain decoding is the server's to add.
    wanted = parse_all(arms) if arms else []
    with Client(url, api_key(settings)) as server:
        return race_there(server, wanted, [one.text for one in prompts], max_tokens)


def _stand_alone(context: Context, mode: str, *allowed: str, exports: Sequence[str] = EXPORTS) -> None:
    """Raise UsageError for a flag that would do nothing beside `mode`."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        flag = parameter.opts[-1]
        if source is not None and source.name == "COMMANDLINE" and flag not in (mode, *allowed, *exports):
            raise UsageError(f"{flag} does nothing beside {mode}; leave one of them out")
