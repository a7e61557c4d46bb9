"""A suite file: models × arms × prompts × depths in YAML, read into a plan.

    models: [demo, {model: demo, precision: q4}]
    arms: [baseline, "dspark:cap=4"]            # left out: every mode of each pair
    prompts: [builtin, {file: mine.jsonl}]      # left out: builtin; files are looked for beside the suite
    depths: [0, 4k]
    max_tokens: 64

and `trials`, `seed`, `cooldown`, `temperature`, `top_p`, `top_k`, `min_p` as on the command line.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dspark import yamlfile
from dspark.decoding.request import Sampling
from dspark.errors import UsageError
from dspark.racing.arms import parse_all
from dspark.racing.depth import parse_depths
from dspark.racing.plan import DEMO, Choice, Plan
from dspark.racing.prompts import Prompt, builtin, gather, read_file
from dspark.yamlfile import Malformed

LARGEST_BYTES = 2**20


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Model(_Strict):
    """A pair; the settings are those of the command line."""

    model: str = DEMO
    drafter: str | None = None
    precision: Literal["fp32", "bf16", "q4"] | None = None
    kv_bits: int | None = None
    drafter_bits: int | Literal["auto"] = "auto"
    drafter_window: int | Literal["auto"] = "auto"
    sdpa_split: bool | None = None
    profile: str | None = None
    trust_remote_code: bool = False


class Prompts(_Strict):
    """Exactly one of the three."""

    builtin: Literal[True] | None = None
    file: str | None = None
    text: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("give builtin, {file: PATH} or {text: PROMPT}")
        return self

    def read(self, folder: Path) -> list[Prompt]:
        if self.file is not None:
            return read_file(folder / self.file)
        return builtin() if self.text is None else gather([self.text], [])


def _named(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


def _source(value: Any) -> Any:
    return {"builtin": True} if value == "builtin" else value


def _digits(value: Any) -> Any:
    return str(value) if type(value) is int else value


class Suite(_Strict):
    models: Annotated[list[Annotated[Model, BeforeValidator(_named)]], Field(min_length=1)]
    arms: Annotated[list[str], Field(min_length=1)] | None = None
    prompts: Annotated[list[Annotated[Prompts, BeforeValidator(_source)]], Field(min_length=1)] = [
        Prompts(builtin=True)
    ]
    depths: Annotated[list[Annotated[str, BeforeValidator(_digits)]], Field(min_length=1)] = ["0"]
    max_tokens: int = 64
    trials: int = 3
    seed: int = 0
    cooldown: float = 0.0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


def read_suite(path: Path) -> Plan:
    """The plan of a suite file. Raises UsageError that names the file and every key at fault, in one line."""
    try:
        suite = Suite.model_validate(_load(path))
        return _plan(suite, path.parent)
    except ValidationError as error:
        raise UsageError(f"--suite {path}: {'; '.join(_told(error))}") from error
    except UsageError as error:
        raise UsageError(f"--suite {path}: {error}") from error


def _plan(suite: Suite, folder: Path) -> Plan:
    choices = (Choice(**each.model_dump()) for each in suite.models)
    return Plan(
        choices=tuple(dict.fromkeys(choices)),
        arms=None if suite.arms is None else tuple(parse_all(suite.arms)),
        prompts=tuple(prompt for each in suite.prompts for prompt in each.read(folder)),
        depths=parse_depths(suite.depths),
        max_tokens=suite.max_tokens,
        trials=suite.trials,
        seed=suite.seed,
        cooldown_s=suite.cooldown,
        sampling=Sampling(
            temperature=suite.temperature, top_p=suite.top_p, top_k=suite.top_k, min_p=suite.min_p, seed=suite.seed
        ),
    )


def _load(path: Path) -> Any:
    try:
        return yamlfile.read(path, LARGEST_BYTES)
    except FileNotFoundError as error:
        raise UsageError("does not exist; check the path") from error
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror or error}); check the path") from error
    except Malformed as error:
        raise UsageError(f"{error}; correct it") from error


def _told(error: ValidationError) -> list[str]:
    """One phrase a mistake: where it stands (list items counted from 1), and what is wrong there."""
    phrases: dict[str, None] = {}
    for each in error.errors(include_url=False):
        kind, place = each["type"], [str(part + 1 if isinstance(part, int) else part) for part in each["loc"]]
        if kind == "extra_forbidden":
            owner: type[BaseModel] = Suite if len(place) == 1 else Model if place[0] == "models" else Prompts
            phrases[f"{'.'.join(place)} is unknown (possible: {', '.join(owner.model_fields)})"] = None
        elif kind == "missing":
            phrases[f"{'.'.join(place)} is missing"] = None
        elif not place:
            phrases["holds no mapping; begin with `models: [demo]`"] = None
        else:
            name = ".".join(part for part in place if part not in ("int", "literal['auto']"))
            phrases[f"{name}: {each['msg'].removeprefix('Value error, ')}"] = None
    return list(phrases)
