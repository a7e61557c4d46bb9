"""How much a calibration measures, and on which prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dspark.tuning.costs import interpolate
from dspark.tuning.curves import Level
from dspark.tuning.measure import SHALLOW_TOKENS

DEPTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
# Room that the widest forwards at a depth need.
_SPARE_TOKENS = 32
_LEAST_ANSWER_TOKENS = 16


@dataclass(frozen=True)
class Question:
    """A prompt as token ids, and its class."""

    klass: str
    tokens: Sequence[int]


@dataclass(frozen=True)
class Chosen:
    """The questions that are answered, and how far."""

    questions: tuple[Question, ...]
    answer_tokens: int


@dataclass(frozen=True)
class Scope:
    """How much to measure.

    `depths` None takes those of `DEPTHS` that can be read within `depth_s`, two at most. Each timing takes about
    `timing_s` and at least `repeats` observations; each chunk size of a prompt takes `prefill_s`. At most
    `answer_tokens` are recorded of each of at most `answers_per_class` prompts of a class, and no more of both than
    `answers_s` allow; one short answer a class is always. `bandwidth` is the machine's, measured as well or not.
    `quick` leaves out the widest forwards, the chunk sizes and the other precision of the drafter.
    """

    depths: tuple[int, ...] | None = None
    depth_s: float = 4.0
    timing_s: float = 0.5
    repeats: int = 4
    prefill_s: float = 1.0
    answers_s: float = 25.0
    answers_per_class: int = 3
    answer_tokens: int = 64
    bandwidth: bool = True
    quick: bool = False

    @classmethod
    def brief(cls) -> "Scope":
        """About a third of the time: no depths, one short answer a class."""
        return cls(
            depths=(),
            timing_s=0.1,
            repeats=3,
            answers_s=6.0,
            answers_per_class=1,
            answer_tokens=24,
            bandwidth=False,
            quick=True,
        )

    def estimates(self) -> dict[str, float]:
        """Seconds of each stage, before anything is known."""
        return {
            "costs of a round": 20 * self.timing_s,
            "prefill": 4 * self.prefill_s,
            "depth": 0.0 if self.depths == () else 2 * self.depth_s,
            "answers": self.answers_s,
            "bandwidth": 3.0 if self.bandwidth else 0.0,
            "derivation": 2.0,
        }

    def depths_at(self, tokens_per_s: float, context_window: int) -> list[int]:
        """The depths to measure at, sorted: as asked, or the deepest that can be afforded and a shallower one."""
        wanted = DEPTHS if self.depths is None else self.depths
        fitting = sorted({depth for depth in wanted if SHALLOW_TOKENS < depth < context_window - _SPARE_TOKENS})
        if self.depths is not None:
            return fitting
        affordable = [depth for depth in fitting if depth <= tokens_per_s * self.depth_s]
        return affordable[-3:-2] + affordable[-1:] if len(affordable) > 2 else affordable

    def choose(self, questions: Sequence[Question], tokens_per_s: float, level: Level) -> tuple[Chosen, float]:
        """What to answer within `answers_s`, and the seconds that it will take.

        The shortest questions of each class are taken, as they leave the most time for answers.
        """
        chosen, seconds = Chosen((), 0), 0.0
        for each, tokens in self._amounts():
            chosen = Chosen(tuple(shortest(questions, each)), tokens)
            seconds = _seconds(chosen, tokens_per_s, level)
            if seconds <= self.answers_s:
                break
        return chosen, seconds

    def _amounts(self) -> list[tuple[int, int]]:
        """Questions a class and tokens of each, the most tokens in all first."""
        lengths = {self.answer_tokens, *range(_LEAST_ANSWER_TOKENS, self.answer_tokens, 16)}
        amounts = [(each, tokens) for each in range(1, self.answers_per_class + 1) for tokens in lengths]
        return sorted(amounts, key=lambda amount: (amount[0] * amount[1], amount[0]), reverse=True)


def shortest(questions: Sequence[Question], each: int) -> list[Question]:
    """The shortest `each` questions of every class."""
    classes: Mapping[str, list[Question]] = {question.klass: [] for question in questions}
    for question in sorted(questions, key=lambda question: len(question.tokens)):
        if len(classes[question.klass]) < each:
            classes[question.klass].append(question)
    return [question for found in classes.values() for question in found]


def _seconds(chosen: Chosen, tokens_per_s: float, level: Level) -> float:
    """Prompts are read once; answers are decoded in one batch and read again for the drafter."""
    count, tokens = len(chosen.questions), chosen.answer_tokens
    read = sum(len(question.tokens) + tokens for question in chosen.questions) / tokens_per_s
    batch_ms = interpolate(tuple(sorted((width, timing.ms) for width, timing in level.verify.items())), count)
    draft_ms = max((timing.ms for timing in level.draft.values()), default=0.0)
    return read + tokens * (batch_ms + count * draft_ms) / 1e3
