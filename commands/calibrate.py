"""`mlx-dspark calibrate`: measure what rounds cost and what drafts are worth here, and keep the settings that win."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from typer import Option

from dspark.commands.options import load_options, takes
from dspark.errors import ProfileError, UsageError
from dspark.settings import SETTINGS, Settings

if TYPE_CHECKING:
    from rich.console import Console

    from dspark.calibrating.agenda import Stage
    from dspark.calibrating.scope import Question, Scope
    from dspark.engine import Engine, Loaded
    from dspark.tuning.profile import Derived, DerivedSetting, Profile

UNSURE = "?: seen in too few answers to count on, so that plain decoding stays the best fixed setting there"


@takes(
    *("model", "drafter", "precision", "kv_bits", "drafter_bits", "drafter_window", "sdpa_split", "trust_remote_code"),
)
def calibrate(
    settings: Settings,
    quick: Annotated[
        bool, Option("--quick", help="A third of the time: no depths, fewer prompts. A full run replaces it.")
    ] = False,
    depths: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Depths of context, such as 1k,4k,16k. Default: two that can be read in seconds.",
        ),
    ] = None,
    show: Annotated[bool, Option("--show", help="Show the profile in force, and measure nothing.")] = False,
    check: Annotated[
        bool,
        Option("--check", help="Measure a few points against the profile in force. Exits 1 if it no longer holds."),
    ] = False,
    force: Annotated[bool, Option("--force", help="Measure even where an undisturbed profile is in force.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON, and nothing else on stdout.")] = False,
) -> int:
    """Measure this pair on this machine once; every command goes by the profile from then on.

    Without --force a clean profile of this very machine, pair and MLX is shown instead of measured again. A profile
    measured while the machine was busy, hot, swapping or on battery says so, and the next run replaces it.

    Examples:

        mlx-dspark calibrate

        mlx-dspark calibrate --model mlx-community/Qwen3-4B-8bit --depths 1k,8k,32k --json
    """
    from dspark.commands.rendering import print_lines, stderr_console

    if sum((show, check, force)) > 1:
        raise UsageError("--show, --check and --force exclude each other; give one of them")
    if quick and depths is not None:
        raise UsageError("--quick measures at no depth; leave --depths or --quick out")
    if (show or check) and (quick or depths is not None):
        what = "--quick" if quick else "--depths"
        raise UsageError(f"{what} does nothing beside {'--show' if show else '--check'}; leave one of them out")
    scope = _scope(quick, depths)

    from dspark.engine import Engine
    from dspark.tuning import profiles

    if not (show or check):
        profiles.prepare()
    engine, said = Engine(), stderr_console()
    if settings.origin("model") == "default":
        print_lines(said, "no --model given: the demo pair (SmolLM2-135M-Instruct, for a first look)")
    loaded = engine.load(load_options(settings))
    for note in loaded.notes:
        print_lines(said, note)
    _refuse_depths_outside(scope, loaded)
    profile = engine.profile
    if show or check:
        if profile is None:
            raise ProfileError(f"{loaded.model} is not calibrated on this machine: run {_command(settings)}")
        return (
            _check(engine, _command(settings, "--force"), as_json=as_json)
            if check
            else _present(profile, loaded.profile, as_json)
        )
    if profile is not None and profile.clean and not force:
        already = f"calibrated already, on {profile.measured.date}"
        new = sorted({*(scope.depths or ())} - {level.depth for level in profile.curves.levels})
        if not new:
            print_lines(said, f"{already}: shown as it is (--force measures again)")
            return _present(profile, loaded.profile, as_json)
        print_lines(said, f"{already}, but not at {', '.join(map(str, new))} tokens of context: measuring again")
    with _progress(said) as report:
        measured = engine.calibrate(_questions(engine), scope, report)
    path = profiles.write(measured)
    measured = profiles.read(path)  # what later commands will go by
    for sentence in measured.measured.disturbances:
        print_lines(said, f"warning: {sentence}", style="yellow")
    return _present(measured, str(path), as_json)


def _scope(quick: bool, depths: str | None) -> Scope:
    from dspark.calibrating.scope import Scope
    from dspark.racing.depth import parse_depths

    if quick:
        return Scope.brief()
    return Scope() if depths is None else Scope(depths=tuple(sorted(parse_depths([depths], "--depths", least=1))))


def _refuse_depths_outside(scope: Scope, loaded: Loaded) -> None:
    """Raise UsageError for depths that would be passed over: within what is measured anyway, or beyond the window."""
    if scope.depths is None:
        return
    from dspark.tuning.measure import SHALLOW_TOKENS

    outside = sorted({*scope.depths} - {*scope.depths_at(0.0, loaded.context_window)})
    if outside:
        raise UsageError(
            f"--depths {','.join(map(str, outside))}: not possible with {loaded.model}, whose context window is "
            f"{loaded.context_window} tokens; give depths of more than {SHALLOW_TOKENS} that leave room for some rounds"
        )


def _questions(engine: Engine) -> list[Question]:
    from dspark.calibrating.scope import Question
    from dspark.racing.prompts import builtin

    return [Question(prompt.klass, engine.encode_chat(prompt.text)) for prompt in builtin()]


def _command(settings: Settings, *flags: str) -> str:
    """What calibrates the same pair."""
    given = ((SETTINGS[name].flag, value) for name, value in settings.from_flags().items())
    pair = [word for flag, value in given for word in _words(flag, value)]
    return shlex.join(["mlx-dspark", "calibrate", *pair, *flags])


def _words(flag: str, value: object) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (flag if value else flag.replace("--", "--no-", 1),)
    return flag, str(value)


def _check(engine: Engine, remedy: str, *, as_json: bool) -> int:
    """Compare a few points, the plain step first: what it has changed by, everything probably has."""
    from dspark.calibrating.calibration import MOST_OFF
    from dspark.commands.rendering import print_json, print_lines, stdout_console

    points = engine.recheck()
    holds = all(abs(point.off) <= MOST_OFF for point in points)
    if as_json:
        print_json({"holds": holds, "points": [vars(point) | {"off": point.off} for point in points]})
        return 0 if holds else 1
    console = stdout_console()
    for point in points:
        line = f"{point.name}: {point.now_ms:.1f} ms now, {point.then_ms:.1f} ms in the profile ({point.off:+.0%})"
        print_lines(console, line)
    verdict = "the profile still holds" if holds else f"the profile no longer holds: run {remedy}"
    print_lines(console, verdict, style="bold")
    return 0 if holds else 1


def _present(profile: Profile, path: str | None, as_json: bool) -> int:
    from dspark.commands.rendering import print_json, stdout_console

    if as_json:
        print_json(profile.as_dict() | {"path": path})
    else:
        _print_profile(stdout_console(), profile, path)
    return 0


def _print_profile(console: Console, profile: Profile, path: str | None) -> None:
    from dspark.commands.rendering import print_lines, print_table

    measured, derived = profile.measured, profile.derived
    print_lines(console, f"{measured.model} ({measured.dtype}), drafter {measured.drafter or 'none'}", style="bold")
    key, how = profile.key, "measured quickly" if measured.quick else "measured"
    print_lines(
        console, f"{key.chip or 'unknown chip'}, {key.device}, mlx {key.mlx}, {how} {measured.date}", style="dim"
    )
    levels = sorted(profile.curves.levels, key=lambda level: level.depth)
    depths = tuple(f"at {level.depth}" for level in levels)
    plain = levels[0].verify_ms[1]
    widths = sorted({width for level in levels for width in level.verify_ms})
    steps = [(str(width), *(_step(level.verify_ms.get(width), plain) for level in levels)) for width in widths]
    console.print()
    print_table(console, ("rows", *depths), steps, ("rows", *depths))
    console.print()
    if levels[0].draft_ms:
        cap, ms = max(levels[0].draft_ms.items())
        print_lines(console, f"a draft of {cap} costs {ms / plain:.2f} of one row ({ms:.1f} ms)")
    rates = profile.curves.prefill
    if rates:
        best = max(rates, key=lambda rate: rate.tokens_per_s)
        print_lines(console, f"prompts are read at {best.tokens_per_s:.0f} tokens/s, in chunks of {best.chunk}")
    if moved := profile.curves.bandwidth:
        print_lines(console, f"memory moves at {moved.gb_s:g} GB/s ({moved.method})", hanging=2)
    console.print()
    choices = [_choice(klass, one, derived.auto_speedup.get(klass)) for klass, one in derived.classes.items()]
    print_table(console, ("text", "best fixed", "reaches", "auto"), choices, ("reaches", "auto"))
    console.print()
    if any(_unsure(one) for one in derived.classes.values()):
        print_lines(console, UNSURE, hanging=2)
    for line in _conclusions(derived):
        print_lines(console, line, hanging=2)
    if path is not None:
        print_lines(console, f"profile: {path}", style="dim")


def _step(ms: float | None, plain_ms: float) -> str:
    return "" if ms is None else f"{ms:.1f} ms {ms / plain_ms:5.2f}"


def _choice(klass: str, one: DerivedSetting, auto: float | None) -> tuple[str, str, str, str]:
    """Plain decoding is shown with the gain that was seen and is too little to count on."""
    if _unsure(one):
        setting, reaches = f"plain; {_named(one.tried)}?", f"{one.low:.2f}-{one.speedup:.2f}x"
    elif one.cap == 0:
        setting, reaches = "plain", "1.00x"
    else:
        setting, reaches = f"{one.mode} cap {one.cap}", f"{one.speedup:.2f}x"
    return klass, setting, reaches, "" if auto is None else f"{auto:.2f}x"


def _unsure(one: DerivedSetting) -> bool:
    return one.cap == 0 and one.speedup > 1.0


def _named(setting: str) -> str:
    """`drafter cap 4` of `drafter cap=4 lookup=on confidence=0.3`."""
    return " ".join(setting.split()[:2]).replace("=", " ")


def _conclusions(derived: Derived) -> Iterator[str]:
    yield derived.reason
    for depth, choice in derived.depths.items():
        what = "plain decoding" if choice.cap == 0 else f"{choice.mode} cap {choice.cap}, {choice.speedup:.2f}x"
        yield f"with {depth} tokens of context: {what}"
    if derived.cap:
        yield f"the best fixed setting: cap {derived.cap}, {_extras(derived.lookup, derived.confidence)}"
    names = {"baseline": "plain decoding", "lookup": "looking things up", "drafter": "the drafter"}
    auto = f"mode auto stands for {names[derived.mode]}"
    if derived.mode != "baseline":
        auto += f", cap {derived.auto_cap}"
    if derived.mode == "drafter":
        auto += f", {_extras(derived.auto_lookup, derived.auto_confidence)}"
    yield auto
    if derived.drafter_bits is not None:
        bits = "unquantized" if derived.drafter_bits == 16 else f"with {derived.drafter_bits} bits a weight"
        yield f"the drafter is fastest {bits}"


def _extras(lookup: bool, confidence: float) -> str:
    threshold = f"confidence threshold {confidence:g}" if confidence else "no confidence threshold"
    return f"lookup {'on' if lookup else 'off'}, {threshold}"


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[Stage], None]]:
    """A bar with the time left on a terminal, a line a stage elsewhere."""
    from dspark.commands.rendering import draws, print_lines

    if not draws(console):
        told: list[str] = []

        def line(stage: Stage) -> None:
            if stage.name not in told:
                told.append(stage.name)
                print_lines(console, f"{stage.name} (about {stage.left_s:.0f} s left in all)")

        yield line
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("calibrating", total=1.0, left="")

        def draw(stage: Stage) -> None:
            bar.update(task, completed=stage.share, description=stage.name, left=f"about {stage.left_s:.0f} s left")

        yield draw
