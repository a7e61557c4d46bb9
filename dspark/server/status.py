"""What the server tells of itself. Nothing here waits for the worker, but for a bandwidth that it may be measuring."""

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dspark.doctor import Address
from dspark.errors import ValidationFailed
from dspark.server import metrics, sse
from dspark.server.calibration import calibration
from dspark.server.exchange import Answer, EventStream, HttpRequest, Response
from dspark.server.hardware import Hardware
from dspark.server.load import Load
from dspark.server.loads import Loads
from dspark.server.routing import Route
from dspark.server.serving import Serving
from dspark.server.streams import Frames
from dspark.server.telemetry import ROUNDS_KEPT, Subscription, Telemetry
from dspark.server.worker import Task, Worker

ROUNDS_SHOWN = 100
MEASURING_SECONDS = 10.0
COMMENT = b": nothing yet\n\n"


class Status:
    """Handlers of section 4 of the contract."""

    def __init__(
        self,
        worker: Worker,
        loads: Loads,
        telemetry: Telemetry,
        hardware: Hardware,
        *,
        max_output_tokens: int,
        keepalive_s: float,
        address: Address,
        document: Callable[[], dict[str, Any]],
    ) -> None:
        self._worker = worker
        self._loads = loads
        self._telemetry = telemetry
        self._hardware = hardware
        self._max_output_tokens = max_output_tokens
        self._keepalive_s = keepalive_s
        self._address = address
        self._document = document

    def routes(self) -> list[Route]:
        """Their part of the table."""
        return [
            Route("GET", "/health", self._health, "open"),
            Route("GET", "/metrics", self._metrics, "status"),
            Route("GET", "/machine", self._machine, "status"),
            Route("GET", "/calibration", lambda request: Response.json(calibration(self._loads.serving)), "status"),
            Route("GET", "/events", self._events, "status"),
            Route("GET", "/rounds", self._rounds, "status"),
            Route("GET", "/doctor", self._doctor, "status"),
            Route("GET", "/openapi.json", lambda request: Response.json(self._document()), "status"),
        ]

    def _health(self, request: HttpRequest) -> Response:
        if not self._worker.alive:
            why = self._worker.death or "the server ends"
            return Response.json({"status": "broken", "error": f"the thread that decodes is gone ({why})"}, 503)
        serving, load = self._loads.serving, self._loads.load
        told: dict[str, Any] = {"status": "loading" if load else "ok" if serving else "no_model"}
        if load is not None:
            told |= _of_load(load)
        elif serving is not None:
            told |= self._of_serving(serving)
        if self._loads.error is not None:
            told["load_error"] = self._loads.error
        progress = self._telemetry.progress_at
        told["busy"] = self._worker.busy
        told["waiting"] = self._worker.waiting
        told["last_error"] = self._worker.last_error
        told["seconds_since_progress"] = None if progress is None else time.time() - progress
        return Response.json(told)

    def _of_serving(self, serving: Serving) -> dict[str, Any]:
        loaded, speculation, template = serving.loaded, serving.speculation, serving.conversation.template
        thinking = serving.thinking
        return {
            "model": serving.name,
            "mode": speculation.mode,
            "target": serving.name,
            "drafter": loaded.drafter and Path(loaded.drafter).name if _is_path(loaded.drafter) else loaded.drafter,
            "max_draft": speculation.cap,
            "lookup_drafts": speculation.lookup,
            "confidence_threshold": speculation.confidence,
            "context_window": serving.window,
            "kv_bits": loaded.kv_bits or 0,
            "small_m": None,
            "multirow_attn": None,
            "sdpa_split": loaded.sdpa_split,
            "cpu_split": None,
            "drafter_window": loaded.drafter_window,
            "warmup": serving.warm,
            "memory_guard": serving.wish.memory_guard,
            "max_output_tokens": min(self._max_output_tokens, serving.window - 1),
            "supports_reasoning_effort": template.effort is not None,
            "thinking_default": template.thinks_unasked if thinking.enabled is None else thinking.enabled,
            "reasoning_effort": thinking.effort,
            "warnings": [*serving.warnings, *self._pressure()],
        }

    def _pressure(self) -> list[str]:
        pressure = self._hardware.memory().pressure
        if pressure in ("warning", "critical"):
            return [f"memory pressure is {pressure}: close programs, or load a smaller model or context"]
        return []

    def _metrics(self, request: HttpRequest) -> Response:
        told = metrics.snapshot(self._telemetry, self._worker, self._hardware, self._loads.serving)
        form = request.query.get("format")
        if form not in (None, "json", "prometheus"):
            raise ValidationFailed("query -> format: Input should be 'json' or 'prometheus'", "format")
        accepted = request.headers.get("accept", "")
        if form == "prometheus" or (form is None and "text/plain" in accepted and "application/json" not in accepted):
            return Response(200, metrics.prometheus(told).encode(), metrics.PROMETHEUS)
        return Response.json(told)

    def _machine(self, request: HttpRequest) -> Response:
        self._measure()
        serving, measured = self._loads.serving, self._hardware.measured
        published = self._hardware.published_bandwidth()
        told = measured.as_dict() if measured else {**self._hardware.machine().as_dict(), "bandwidth": None}
        told["published_bandwidth"] = asdict(published) if published else None
        told["model"], told["verdict"] = None, "no model is loaded, so there is nothing to compare the bandwidth with"
        if serving is not None:
            rate = (self._telemetry.roofline or {}).get("decode_tokens_per_sec")
            bound = self._hardware.roofline(serving.traffic, self._telemetry.last_context_tokens, rate)
            told["model"] = {"name": serving.name, **(bound.as_dict() if bound else _weight(serving))}
            told["verdict"] = bound.verdict if bound else "the ceiling is not known: the bandwidth was not measured"
        return Response.json(told)

    def _measure(self) -> None:
        """Have the machine measured, if the worker has nothing else to do."""
        if self._hardware.measured is None and self._worker.alive and not self._worker.busy:
            task = Task(self._hardware.measure)
            self._worker.submit(task, always=True)
            task.wait(MEASURING_SECONDS)

    def _doctor(self, request: HttpRequest) -> Response:
        """What `mlx-dspark doctor --json` prints, of the address that this server has."""
        from dspark.doctor import examine

        return Response.json(examine(self._address).as_dict())

    def _events(self, request: HttpRequest) -> Answer:
        stack = ExitStack()
        reader = stack.enter_context(self._telemetry.reading())
        return EventStream(Frames(self._told(reader, request), stack.close))

    def _told(self, reader: Subscription, request: HttpRequest) -> Generator[bytes]:
        def take(timeout_s: float) -> dict[str, Any]:
            return reader.take(timeout_s) or _LAST

        for event in sse.patiently(take, request.gone, self._keepalive_s):
            if event is _LAST:
                return
            yield COMMENT if event is None else sse.frame(event)

    def _rounds(self, request: HttpRequest) -> Response:
        text = request.query.get("limit", str(ROUNDS_SHOWN))
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise ValidationFailed("query -> limit: Input should be a valid integer, 0 or more", "limit")
        return Response.json(self._telemetry.rounds(min(int(text), ROUNDS_KEPT)))


_LAST: dict[str, Any] = {}


def _of_load(load: Load) -> dict[str, Any]:
    download = load.download
    return {
        "model": load.name,
        "load_id": load.id,
        "phase": load.phase,
        "download": asdict(download) if download else None,
    }


def _is_path(name: str | None) -> bool:
    return name is not None and Path(name).is_absolute()


def _weight(serving: Serving) -> dict[str, Any]:
    return {"traffic": asdict(serving.traffic) if serving.traffic else None}
