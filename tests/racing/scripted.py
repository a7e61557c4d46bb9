"""A decoder whose answers, logit gaps and clock are written down beforehand: the engine's place in a race."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dspark.decoding.events import Event, Finished, FinishReason, PrefillProgress, RoundCommitted, Statistics, Text
from dspark.decoding.request import Request, Sampling, Speculation, SpeculationOptions
from dspark.decoding.verdict import TopTwo
from dspark.errors import DecodingError, UsageError

EOS = 0
NEVER = 10**9


@dataclass(frozen=True)
class Pair:
    """The fields of the engine's `Loaded` that a race reads."""

    model: str = "toy"
    target: str = "/somewhere/toy-target"
    drafter: str | None = "toy-head"
    family: str = "toy"
    dtype: str = "float32"
    quantization: int | None = None
    modes: tuple[str, ...] = ("baseline", "lookup", "dspark")
    context_window: int = 1000
    eos: tuple[int, ...] = (EOS,)
    notes: tuple[str, ...] = ()
    kv_bits: int | None = None
    drafter_bits: str = "auto"
    drafter_window: str = "auto"
    sdpa_split: bool = False


def plain_answer(prompt: Sequence[int]) -> list[int]:
    """What the target says to a prompt: 40 ids without a loop, other ones for each prompt."""
    return [1 + (sum(prompt) + 7 * at * at + at) % 997 for at in range(40)]


@dataclass
class ScriptedDecoder:
    """Decodes `greedy(prompt)`; `alter(mode, call, ids)` may change what the `call`-th generation of a mode says.

    `seconds(mode, tokens)` is how far a generation moves `now`. `rivals` gives the target's second choice and the gap
    at a position of the answer. `broken` lists modes whose generations raise (`error`), `interrupt_at` the generation
    that Ctrl-C ends after its first round.
    """

    greedy: Callable[[Sequence[int]], list[int]] = plain_answer
    alter: Callable[[str, int, list[int]], list[int]] = lambda mode, call, ids: ids
    seconds: Callable[[str, int], float] = lambda mode, tokens: 0.1 * tokens / (2 if mode == "dspark" else 1)
    rivals: dict[int, tuple[int, float]] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    error: Exception | None = None
    interrupt_at: int = NEVER
    modes: tuple[str, ...] = ("baseline", "lookup", "dspark")
    now: float = 0.0
    requests: list[Request] = field(default_factory=list)
    asked: list[tuple[int, ...]] = field(default_factory=list)
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def resolve(self, options: SpeculationOptions) -> Speculation:
        mode = "dspark" if options.mode == "auto" else options.mode
        if mode not in self.modes:
            raise UsageError(f"mode {mode} is not possible for toy: it supports {', '.join(self.modes)}")
        if mode == "baseline":
            return Speculation("baseline", 0, False, 0.0)
        return Speculation(mode, options.cap or "auto", options.lookup is not False, options.confidence or 0.0)

    def encode_chat(self, prompt: str) -> list[int]:
        ids = [*prompt.encode()]
        self.prompts.append(tuple(ids))
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f"<{token}>" for token in tokens)

    def top_two(self, context: Sequence[int], sampling: Sampling, place: int) -> TopTwo:
        self.asked.append(tuple(context))
        self.places.append(place)
        prompt, said = self._split(context)
        full = [*self.greedy(prompt), EOS]
        second, gap = self.rivals.get(len(said), (999, 5.0))
        return TopTwo(full[len(said)], second, gap, logit=20.0)

    def generate(self, request: Request) -> Iterator[Event]:
        mode = self.resolve(request.speculation).mode
        call = sum(self.resolve(one.speculation).mode == mode for one in self.requests)
        self.requests.append(request)
        return self._run(request, mode, call, len(self.requests) - 1)

    def _run(self, request: Request, mode: str, call: int, index: int) -> Iterator[Event]:
        if mode in self.broken:
            raise self.error or DecodingError(f"{mode} went wrong;\nload another model")
        prompt, said = self._split(request.prompt)
        full = self.alter(mode, call, [*self.greedy(prompt)])[len(said) :]
        ids = full[: request.max_tokens]
        yield PrefillProgress(len(request.prompt), len(request.prompt), done=True)
        width = 2 if mode == "dspark" else 1
        for at in range(0, len(ids), width):
            if request.cancelled():
                yield Finished("cancelled", tuple(ids[:at]), self.decode(ids[:at]), _statistics(1, at, width, 0.0))
                return
            block = tuple(ids[at : at + width])
            yield RoundCommitted(at, "plain", width - 1, len(block) - 1, block, width, 1.0, 0)
            yield Text(self.decode(block))
            if index == self.interrupt_at:
                raise KeyboardInterrupt
        seconds = self.seconds(mode, max(len(ids), 1))
        self.now += seconds
        reason: FinishReason = "stop" if len(full) < request.max_tokens else "length"
        yield Finished(reason, tuple(ids), self.decode(ids), _statistics(len(request.prompt), len(ids), width, seconds))

    def _split(self, context: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        prompt = max((one for one in self.prompts if tuple(context[: len(one)]) == one), key=len)
        return prompt, tuple(context[len(prompt) :])


def _statistics(prompt: int, tokens: int, width: int, seconds: float) -> Statistics:
    rounds = -(-max(tokens - 1, 0) // width)
    drafted = (rounds,) * (width - 1)
    return Statistics(
        prompt_tokens=prompt,
        cached_tokens=0,
        completion_tokens=tokens,
        prefill_seconds=seconds / 4,
        decode_seconds=3 * seconds / 4,
        total_seconds=seconds,
        target_forwards=rounds + 1,
        rounds=rounds,
        drafter_rounds=rounds if width > 1 else 0,
        lookup_rounds=0,
        plain_rounds=rounds if width == 1 else 0,
        drafted=sum(drafted),
        accepted=sum(drafted),
        emitted=max(tokens - 1, 0),
        offered_at=drafted,
        accepted_at=drafted,
    )
