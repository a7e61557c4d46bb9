"""A race over HTTP: several ways to decode one prompt, one after another, and whether they said the same."""

import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from queue import Queue
from typing import Any

from pydantic import Field

from dspark.decoding.events import Finished, RoundCommitted, Text
from dspark.decoding.request import Request, Speculation, SpeculationOptions
from dspark.decoding.verdict import Answer, Verdict, compare, worst
from dspark.errors import DSparkError, EngineStopped
from dspark.server import sse
from dspark.server.conversation import answer_tokens
from dspark.server.dialects.asked import Count
from dspark.server.dialects.wire import Wire
from dspark.server.envelope import error_object
from dspark.server.exchange import EventStream, HttpRequest
from dspark.server.loads import Loads
from dspark.server.serving import Serving
from dspark.server.streams import Frames
from dspark.server.wishes import CapField, LoadMode
from dspark.server.worker import Worker

MAX_ARMS = 8
DEFAULT_TOKENS = 128
PLAIN = SpeculationOptions("baseline")
COMMENT = b": nothing yet\n\n"

Told = dict[str, Any]

_logger = logging.getLogger(__name__)


class ArmField(Wire):
    """One way to decode; what is left out is the loaded pair's default."""

    mode: LoadMode = "auto"
    cap: CapField | None = None
    lookup: bool | None = None
    confidence: float | None = Field(None, ge=0, le=1)

    def options(self) -> SpeculationOptions:
        """As the engine takes it; a cap of 0 is plain decoding."""
        if self.cap == 0:
            return PLAIN
        return SpeculationOptions(self.mode, self.cap, self.lookup, self.confidence)


class RaceBody(Wire):
    """`POST /admin/race`."""

    prompt: str = Field(min_length=1)
    arms: list[ArmField] = Field(min_length=1, max_length=MAX_ARMS)
    max_tokens: Count | None = Field(None, description=f"default: {DEFAULT_TOKENS}")


@dataclass(frozen=True)
class _Entrant:
    options: SpeculationOptions
    speculation: Speculation

    @property
    def label(self) -> str:
        return self.speculation.describe()


class Race:
    """A job for the worker. Plain decoding comes first: it is added where nobody asked for it."""

    def __init__(self, body: RaceBody, serving: Serving) -> None:
        self._body = body
        self._serving = serving
        self._cancelled = False
        self._told: Queue[Told | Exception | None] = Queue()

    def take(self, timeout_s: float) -> Told | None:
        """What is told next; None after the last. Raises `queue.Empty`, or what the race failed with."""
        told = self._told.get(timeout=timeout_s)
        if isinstance(told, Exception):
            raise told
        return told

    def cancel(self) -> None:
        self._cancelled = True

    def fail(self, error: Exception) -> None:
        self._told.put(error)

    def run(self) -> None:
        for told in self._run():
            if self._cancelled:
                self.fail(EngineStopped("the race was called off"))
                return
            self._told.put(told)
        self._told.put(None)

    def _run(self) -> Iterator[Told]:
        engine = self._serving.engine
        prompt = engine.encode_chat(self._body.prompt)
        budget = answer_tokens(len(prompt), self._serving.window, self._body.max_tokens or DEFAULT_TOKENS)
        entrants = self._entrants()
        yield {
            "type": "start",
            "model": self._serving.name,
            "prompt_tokens": len(prompt),
            "max_tokens": budget,
            "arms": [{"arm": at, "label": each.label, **asdict(each.speculation)} for at, each in enumerate(entrants)],
        }
        answers: dict[int, Answer] = {}
        for at, entrant in enumerate(entrants):
            yield {"type": "arm_start", "arm": at, "label": entrant.label}
            yield from self._decode(
                at, entrant, Request(prompt, budget, speculation=entrant.options, reuse=False), answers
            )
        yield self._verdict(prompt, entrants, answers)
        yield {"type": "done"}

    def _entrants(self) -> list[_Entrant]:
        engine = self._serving.engine
        asked = [arm.options() for arm in self._body.arms]
        found = [_Entrant(options, engine.resolve(options)) for options in asked]
        plain = next((each for each in found if each.speculation.mode == "baseline"), None)
        plain = plain or _Entrant(PLAIN, engine.resolve(PLAIN))
        return [plain, *(each for each in found if each is not plain)]

    def _decode(self, at: int, entrant: _Entrant, request: Request, answers: dict[int, Answer]) -> Iterator[Told]:
        try:
            with closing(self._serving.engine.generate(replace(request, cancelled=lambda: self._cancelled))) as events:
                for event in events:
                    if isinstance(event, RoundCommitted):
                        yield {"type": "token", "arm": at, "tokens": list(event.tokens), "source": event.source}
                    elif isinstance(event, Text):
                        yield {"type": "token", "arm": at, "text": event.text}
                    elif isinstance(event, Finished):
                        answers[at] = Answer(event.tokens, ended=event.reason == "stop")
                        yield {"type": "arm_done", "arm": at, "label": entrant.label, **_figures(event)}
        except DSparkError as error:
            yield {"type": "arm_done", "arm": at, "label": entrant.label, "error": " ".join(str(error).split())}

    def _verdict(self, prompt: list[int], entrants: list[_Entrant], answers: dict[int, Answer]) -> Told:
        engine, loaded = self._serving.engine, self._serving.loaded
        arms: list[Told] = []
        outcomes = []
        for at, entrant in enumerate(entrants[1:], 1):
            if 0 not in answers or at not in answers:
                arms.append({"arm": at, "label": entrant.label, "outcome": None})
                continue
            verdict = compare(
                answers[0],
                answers[at],
                dtype=loaded.dtype,
                eos=loaded.eos,
                top_two=lambda tokens: engine.top_two([*prompt, *tokens]),
            )
            outcomes.append(verdict.outcome)
            arms.append({"arm": at, "label": entrant.label, **self._evidence(verdict)})
        return {"type": "verdict", "outcome": worst(outcomes), "reference": 0, "arms": arms}

    def _evidence(self, verdict: Verdict) -> Told:
        seen = verdict.evidence
        told: Told = {"outcome": verdict.outcome, "tie": verdict.outcome == "tied", "position": None}
        if seen is None:
            return told
        best = seen.top_two
        return {
            **told,
            "position": seen.position,
            "expected": self._named(seen.expected),
            "found": self._named(seen.found),
            "gap": best.gap if best else None,
            "threshold": seen.threshold,
        }

    def _named(self, token: int | None) -> Told | None:
        return None if token is None else {"id": token, "text": self._serving.engine.decode([token])}


def _figures(done: Finished) -> Told:
    told = done.statistics
    return {
        "text": done.text,
        "finish_reason": done.reason,
        "completion_tokens": told.completion_tokens,
        "accept_len": told.accept_len,
        "decode_tokens_per_sec": told.decode_tokens_per_second,
        "prefill_seconds": told.prefill_seconds,
        "decode_seconds": told.decode_seconds,
        "target_forwards": told.target_forwards,
    }


def start(request: HttpRequest, worker: Worker, loads: Loads, keepalive_s: float) -> EventStream:
    """`POST /admin/race`: each event under its own name.

    Raises:
        BadRequest, ValidationFailed, NotLoaded, Overloaded.
    """
    body = RaceBody.read(request.body)
    serving = loads.ready()
    for arm in body.arms:
        serving.engine.resolve(arm.options())  # pure: refuses here what no race could run
    race = Race(body, serving)
    worker.submit(race)
    return EventStream(Frames(_stream(race, request, keepalive_s), lambda: worker.withdraw(race)))


def _stream(race: Race, request: HttpRequest, keepalive_s: float) -> Generator[bytes]:
    def take(timeout_s: float) -> Told:
        return race.take(timeout_s) or _LAST

    try:
        for told in sse.patiently(take, request.gone, keepalive_s):
            if told is _LAST:
                return
            yield COMMENT if told is None else sse.frame(told, told["type"])
    except Exception as error:
        _logger.error("%s: the race broke off", request.id, exc_info=error)
        yield sse.frame({"type": "error", "error": error_object(error)}, "error")


_LAST: Told = {}
