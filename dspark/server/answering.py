"""One order on its way: events of the decoder in, frames of its dialect out."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from dspark.decoding.events import Finished, RoundCommitted, Text
from dspark.errors import DSparkError
from dspark.server import figures, sse
from dspark.server.conversation import Prompt
from dspark.server.dialects.reply import Frame, Reply
from dspark.server.figures import Run
from dspark.server.generation import Generation, Heard
from dspark.server.hardware import Hardware
from dspark.server.order import Order
from dspark.server.parts import Content, Ending, Part, Reason
from dspark.server.serving import Serving
from dspark.server.telemetry import Telemetry

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Around:
    """What an answer needs of the server besides the pair that gives it."""

    telemetry: Telemetry
    hardware: Hardware
    keepalive_s: float


class Answering:
    """Drives `reply` by what `generation` tells. `arrived` is when the request came, by `time.perf_counter`.

    `over` is set once all of the answer was told.
    """

    def __init__(
        self,
        order: Order,
        prompts: Sequence[Prompt],
        serving: Serving,
        reply: Reply,
        generation: Generation,
        around: Around,
        *,
        arrived: float,
    ) -> None:
        self.over = False
        self._order = order
        self._serving = serving
        self._reply = reply
        self._generation = generation
        self._around = around
        self._arrived = arrived
        self._choices = [_Choice(order, serving, prompts[at // order.n]) for at in range(order.choices)]

    def frames(self, gone: Callable[[], bool]) -> Iterator[Frame]:
        """All frames of a stream, keep-alives among them. It ends early once `gone`.

        Raises:
            What the engine raised, or whatever else went wrong.
        """
        yield from self._reply.begin()
        for at, choice in enumerate(self._choices):
            if self._order.echo:
                yield from self._reply.feed(Content(choice.prompt.text), at)
        for heard in sse.patiently(self._take, gone, self._around.keepalive_s):
            if heard is None:
                yield self._reply.keepalive()
            elif heard is _OVER:
                self.over = True
                return
            else:
                yield from self._on(heard)

    def stream(self, gone: Callable[[], bool], request_id: str) -> Iterator[Frame]:
        """The same, with an error told in the stream."""
        try:
            yield from self.frames(gone)
        except Exception as error:
            defect = None if isinstance(error, DSparkError) else error
            _logger.error("%s: the answer broke off: %s", request_id, error, exc_info=defect)
            yield from self._reply.fail(error)

    def _take(self, timeout_s: float) -> Heard:
        return self._generation.take(timeout_s) or _OVER

    def _on(self, heard: Heard) -> Iterator[Frame]:
        choice, event = self._choices[heard.choice], heard.event
        if isinstance(event, RoundCommitted):
            choice.cap = max(event.cap, choice.cap or 0)
            choice.first_at = choice.first_at or heard.at
            if event.logprobs:
                yield from self._reply.feed(figures.scores(self._serving.tokenizer, event.logprobs), heard.choice)
        elif isinstance(event, Text):
            yield from self._fed(choice.splitter.feed(event.text), heard.choice)
        elif isinstance(event, Finished):
            yield from self._fed(choice.splitter.finish(event.reason), heard.choice)
            yield from self._reply.finish(self._ending(choice, event, heard.at), heard.choice)

    def _fed(self, parts: Sequence[Part], at: int) -> Iterator[Frame]:
        for part in parts:
            yield from self._reply.feed(part, at)

    def _ending(self, choice: "_Choice", done: Finished, at: float) -> Ending:
        serving, told = self._serving, done.statistics
        reason: Reason = choice.splitter.reason or done.reason
        stopped = done.stop_string if done.stop_string in self._order.stop and reason == "stop" else None
        context = told.prompt_tokens + told.completion_tokens
        bound = self._around.hardware.roofline(serving.traffic, context)
        run = Run(
            mode=serving.speculation.mode,
            cap=choice.cap,
            ttft_seconds=None if choice.first_at is None else choice.first_at - self._arrived,
            total_seconds=at - self._arrived,
            ceiling_tokens_per_second=bound.given.tokens_per_s if bound and bound.given else None,
        )
        block = figures.figures(told, run)
        self._around.telemetry.last_context_tokens = context
        shown = ("decode_tokens_per_sec", "ceiling_tokens_per_sec", "roofline_ratio")
        self._around.telemetry.roofline = {name: block[name] for name in shown}
        thought = figures.reasoning_tokens(serving.tokenizer, done.tokens, choice.splitter.reasoned)
        return Ending(
            "stop_sequence" if stopped is not None else reason, figures.usage(told, run, thought), block, stopped
        )


class _Choice:
    """One answer as it grows."""

    def __init__(self, order: Order, serving: Serving, prompt: Prompt) -> None:
        self.prompt = prompt
        self.splitter = serving.conversation.splitter(order, prompt)
        self.cap: int | None = None
        self.first_at: float | None = None


_OVER = Heard(-1, Text(""), perf_counter())
