"""Runs a race: warms every arm alike, then goes through the schedule and records one trial after another."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from dspark.decoding.events import Event, Finished
from dspark.decoding.request import Request, Sampling
from dspark.errors import DSparkError, PromptError, UsageError
from dspark.racing.arms import Entrant
from dspark.racing.decoder import Decoder
from dspark.racing.depth import encode
from dspark.racing.prompts import Prompt, depth_label
from dspark.racing.trials import Slot, Trial, schedule

WARM_UP_TOKENS = 16
WARM_UP_PROMPT = (
    "Say this twice: the tide comes in, the tide goes out, the tide comes in, the tide goes out. Then explain why."
)


@dataclass(frozen=True)
class WarmingUp:
    """`arm` is about to be warmed."""

    arm: str


@dataclass(frozen=True)
class Started:
    """A trial begins; `index` of `total` have been run."""

    slot: Slot
    arm: str
    index: int
    total: int


@dataclass(frozen=True)
class Heard:
    """The decoder told something about the trial of `arm`."""

    arm: str
    event: Event


@dataclass(frozen=True)
class Ended:
    """A trial is complete and recorded."""

    trial: Trial


@dataclass(frozen=True)
class Failed:
    """`arm` raised an error and takes no further part."""

    arm: str
    message: str


Progress = WarmingUp | Started | Heard | Ended | Failed


class Runner:
    """A race that is under way. What was recorded stays when `run` is left early, by an interrupt for one.

    Prompts are encoded at once; PromptError where one is empty or leaves no room for an answer in `context_window`
    tokens, UsageError where its depth takes that room. `cooldown_s` is waited between answers, for machines that slow
    down as they warm up. `clock` gives seconds. Between two events of a trial the caller's code is on that clock: keep
    it short.
    """

    def __init__(
        self,
        decoder: Decoder,
        entrants: Sequence[Entrant],
        prompts: Sequence[Prompt],
        *,
        max_tokens: int,
        trials: int,
        context_window: int,
        sampling: Sampling = Sampling(),
        cooldown_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.decoder = decoder
        self.entrants = tuple(entrants)
        self.prompts = tuple(prompts)
        self.max_tokens = max_tokens
        self.number_of_trials = trials
        self.sampling = sampling
        self._context_window = context_window
        self._check_depth()
        self.encoded = [self._encode(prompt) for prompt in prompts]
        self.trials: list[Trial] = []
        self.failures: dict[str, str] = {}
        self._cooldown_s = cooldown_s
        self._clock, self._sleep = clock, sleep

    def run(self) -> Generator[Progress]:
        """Run everything, telling how it goes. An arm that raises an error of any kind drops out; the others go on."""
        yield from self._warm_up()
        total = len(self.prompts) * self.number_of_trials * len(self.entrants)
        for index, slot in enumerate(schedule(len(self.prompts), self.number_of_trials, len(self.entrants))):
            if len(self.failures) == len(self.entrants):
                return
            entrant = self.entrants[slot.arm]
            if entrant.label in self.failures:
                continue
            if self._cooldown_s and self.trials:
                self._sleep(self._cooldown_s)
            yield Started(slot, entrant.label, index, total)
            try:
                yield from self._trial(slot, entrant)
            except Exception as error:
                yield self._fail(entrant, error)

    def _warm_up(self) -> Iterator[Progress]:
        prompt = self.decoder.encode_chat(WARM_UP_PROMPT)[: max(self._context_window // 2, 1)]
        for entrant in self.entrants:
            yield WarmingUp(entrant.label)
            try:
                warm_up = Request(prompt, WARM_UP_TOKENS, speculation=entrant.arm.options, reuse=False)
                for _ in self.decoder.generate(warm_up):
                    pass
            except Exception as error:
                yield self._fail(entrant, error)

    def _trial(self, slot: Slot, entrant: Entrant) -> Iterator[Progress]:
        request = Request(
            self.encoded[slot.prompt],
            self.max_tokens,
            speculation=entrant.arm.options,
            sampling=self.sampling,
            reuse=False,  # another trial's prompt, read again, would measure nothing
        )
        begun = self._clock()
        for event in self.decoder.generate(request):
            if isinstance(event, Finished):
                trial = Trial.of(
                    slot, self.prompts[slot.prompt].section, entrant.label, event, total_s=self._clock() - begun
                )
                self.trials.append(trial)
                yield Ended(trial)
            else:
                yield Heard(entrant.label, event)

    def _fail(self, entrant: Entrant, error: Exception) -> Failed:
        self.failures[entrant.label] = message = told(error)
        return Failed(entrant.label, message)

    def _encode(self, prompt: Prompt) -> list[int]:
        tokens = encode(self.decoder, prompt)
        if not tokens:
            raise PromptError(f"{_shown(prompt)} has no tokens; give it some text")
        if len(tokens) >= self._context_window and not prompt.depth:
            raise PromptError(
                f"{_shown(prompt)} has {len(tokens)} tokens, the model's context holds {self._context_window}; "
                "shorten it"
            )
        return tokens

    def _check_depth(self) -> None:
        """Raise for the prompt that is furthest beyond what the window holds with its answer."""
        room = self._context_window - self.max_tokens
        deep = [prompt for prompt in self.prompts if prompt.depth]
        over = {prompt: prompt.depth + len(self.decoder.encode_chat(prompt.text)) - room for prompt in deep}
        prompt = max(over, key=over.__getitem__, default=None)
        if prompt is not None and over[prompt] > 0:
            raise UsageError(
                f"--depth {depth_label(prompt.depth)}: with {_shown(prompt)} and {self.max_tokens} tokens of answer "
                f"that is more than the {self._context_window} tokens of the model's context; "
                f"give at most {max(prompt.depth - over[prompt], 0)}"
            )


def _shown(prompt: Prompt) -> str:
    return f"the prompt {' '.join(prompt.text.split())[:40]!r}"


def told(error: Exception) -> str:
    """An error in one line: as it is where it was written for the user, otherwise its type and its first line."""
    if isinstance(error, DSparkError):
        return " ".join(str(error).split()) or type(error).__name__
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
