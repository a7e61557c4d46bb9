"""The generation routes, thin: parse, render the prompt, queue, and pass on what the decoder tells."""

import hashlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from dspark.decoding.request import Request
from dspark.server import sse
from dspark.server.answering import Answering, Around
from dspark.server.constraints import constraint_of
from dspark.server.conversation import Prompt, answer_tokens
from dspark.server.dialects import chat, completions, messages, models, responses
from dspark.server.dialects.models import ModelCard
from dspark.server.dialects.reply import Context
from dspark.server.exchange import Answer, EventStream, HttpRequest, Response
from dspark.server.generation import Generation
from dspark.server.loads import Loads
from dspark.server.order import Order, SamplingWishes
from dspark.server.routing import Route
from dspark.server.serving import Serving
from dspark.server.streams import Frames
from dspark.server.worker import Worker

CLIENT_CLOSED = 499  # for the log: nobody is there to read it
BEGIN_SECONDS = 2.0


@dataclass(frozen=True)
class Defaults:
    """What holds where a request says nothing."""

    sampling: SamplingWishes
    max_tokens: int
    max_tokens_cap: int


class Inference:
    """Handlers of the four dialects, and of the listing of models."""

    def __init__(self, worker: Worker, loads: Loads, around: Around, defaults: Defaults) -> None:
        self._worker = worker
        self._loads = loads
        self._around = around
        self._defaults = defaults

    def routes(self) -> list[Route]:
        """Their part of the table."""
        dialects = {
            "/chat/completions": chat,
            "/completions": completions,
            "/messages": messages,
            "/responses": responses,
        }
        return [
            *(Route("POST", path, self._answers(dialect), "inference") for path, dialect in dialects.items()),
            Route("POST", "/messages/count_tokens", self._count, "inference"),
            Route("GET", "/models", lambda request: Response.json(models.listing(self._card())), "status"),
            Route("GET", "/models/{id:path}", self._model, "status"),
        ]

    def _card(self) -> ModelCard | None:
        serving = self._loads.serving
        return serving.card(self._defaults.max_tokens_cap) if serving else None

    def _model(self, request: HttpRequest) -> Response:
        return Response.json(models.entry(self._card(), request.params["id"]))

    def _count(self, request: HttpRequest) -> Response:
        order = messages.parse(request.body)
        return Response.json({"input_tokens": self._loads.ready().conversation.count_tokens(order)})

    def _answers(self, dialect: ModuleType) -> Callable[[HttpRequest], Answer]:
        return lambda request: self._answer(dialect, request)

    def _answer(self, dialect: Any, request: HttpRequest) -> Answer:
        arrived = time.perf_counter()
        order: Order = dialect.parse(request.body)
        serving = self._loads.ready()
        prompts = serving.conversation.prompts(order)
        boundaries = serving.conversation.boundaries(order, prompts[0]) if serving.wants_boundaries else ()
        requests = [
            self._request(order, serving, prompts[at // order.n], at % order.n, boundaries)
            for at in range(order.choices)
        ]
        telemetry = self._around.telemetry
        mode = serving.speculation.mode
        generation = Generation(serving.engine, requests, telemetry, id_=request.id, mode=mode, gone=request.gone)
        total = sum(len(prompt.ids) for prompt in prompts)
        context = Context(uuid.uuid4().hex, int(time.time()), serving.name, total, request.id)
        reply = dialect.Reply(order, context)
        self._worker.submit(generation, _key_of(request))
        answering = Answering(order, prompts, serving, reply, generation, self._around, arrived=arrived)
        if not order.stream:
            return self._whole(answering, reply, request, generation)
        # What is refused as it is taken up is better refused by a status than in a stream.
        generation.wait_begun(min(BEGIN_SECONDS, self._around.keepalive_s))
        if generation.refusal is not None:
            raise generation.refusal
        frames = (sse.frame(data, event) for event, data in answering.stream(request.gone, request.id))
        return EventStream(Frames(frames, lambda: self._leave(generation)))

    def _whole(self, answering: Answering, reply: Any, request: HttpRequest, generation: Generation) -> Response:
        try:
            for _ in answering.frames(request.gone):
                pass
        finally:
            self._leave(generation)
        return Response.json(reply.whole()) if answering.over else Response(CLIENT_CLOSED)

    def _leave(self, generation: Generation) -> None:
        if self._worker.withdraw(generation):
            generation.withdrawn()

    def _request(
        self, order: Order, serving: Serving, prompt: Prompt, number: int, boundaries: tuple[int, ...]
    ) -> Request:
        """What the decoder is asked for answer `number` to a prompt."""
        limit = order.max_tokens or self._defaults.max_tokens
        thinking = order.thinking.over(serving.thinking)
        sampling = order.sampling.over(self._defaults.sampling, serving.wishes)
        if sampling.seed is not None and number:
            sampling = replace(sampling, seed=sampling.seed + number)  # else all n answers were the same
        sampling.check(serving.loaded.vocabulary)
        return Request(
            prompt.ids,
            answer_tokens(len(prompt.ids), serving.window, limit, self._defaults.max_tokens_cap),
            stop=prompt.stop,
            speculation=serving.asked,
            sampling=sampling,
            constraint=constraint_of(order, thinking, opens_thinking=prompt.opens_thinking, raw=prompt.raw),
            boundaries=boundaries,
        )


def _key_of(request: HttpRequest) -> str | None:
    """On whose account a request waits: sub-keys have a share of the queue each, the main key has all of it."""
    if request.role != "sub":
        return None
    shown = "\0".join(request.headers.get(name, "") for name in ("authorization", "x-api-key"))
    return hashlib.sha256(shown.encode()).hexdigest()
