"""A whole race on a scripted decoder, from arms to result."""

import datetime
from collections.abc import Sequence

from scripted import Pair, ScriptedDecoder

from dspark.machine.watch import Conditions
from dspark.racing.arms import enter, parse_all
from dspark.racing.depth import spread_out
from dspark.racing.prompts import Prompt
from dspark.racing.result import RaceResult, Setup, conclude
from dspark.racing.runner import Runner

STAMP = {"chip": "Toy 1", "mlx": "9.9", "gpu_cores": None, "load_average": float("nan")}
DATE = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
PROMPTS = (Prompt("one", "chat"), Prompt("three", "code"), Prompt("four | five", "code"))


def runner(
    decoder: ScriptedDecoder, *arms: str, trials: int = 2, max_tokens: int = 20, depths: Sequence[int] = (0,)
) -> Runner:
    race = Runner(
        decoder,
        enter(parse_all(arms or ("lookup", "dspark")), decoder),
        spread_out(PROMPTS, depths),
        max_tokens=max_tokens,
        trials=trials,
        context_window=1000,
        clock=lambda: decoder.now,
    )
    decoder.prompts += map(tuple, race.encoded)
    return race


def setup_of(race: Runner, command: str = "mlx-dspark race --arm dspark") -> Setup:
    return Setup(command, race.max_tokens, race.number_of_trials, 0, DATE)


def result_of(race: Runner, *, interrupted: bool = False) -> RaceResult:
    return conclude(race, setup_of(race), Pair(), STAMP, Conditions(0.0, 0), interrupted)


def hold(
    decoder: ScriptedDecoder | None = None,
    *arms: str,
    trials: int = 2,
    max_tokens: int = 20,
    depths: Sequence[int] = (0,),
) -> RaceResult:
    race = runner(decoder or ScriptedDecoder(), *arms, trials=trials, max_tokens=max_tokens, depths=depths)
    list(race.run())
    return result_of(race)


def diverging(gap: float = 1.5) -> ScriptedDecoder:
    """A decoder whose dspark arm says another token at position 3, `gap` behind the target's choice."""
    return ScriptedDecoder(
        alter=lambda mode, call, ids: [*ids[:3], 999, *ids[4:]] if mode == "dspark" else ids, rivals={3: (999, gap)}
    )
