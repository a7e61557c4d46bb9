"""The control plane: load, unload, and what a panel shows. For the main key alone."""

from dataclasses import replace
from typing import Any

from dspark.errors import ValidationFailed
from dspark.integrations import CLIENTS, Endpoint, curl, openai_settings
from dspark.server import race
from dspark.server.catalogue import catalogue
from dspark.server.exchange import HttpRequest, Response
from dspark.server.hardware import Hardware
from dspark.server.loads import Loads
from dspark.server.paths import check_name
from dspark.server.routing import Route
from dspark.server.wishes import LoadBody, Wish
from dspark.server.worker import Worker
from dspark.settings import Settings

PLACEHOLDER_KEY = "YOUR_KEY"
NO_MODEL = "the-loaded-model"
_SWITCHES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Admin:
    """Handlers of section 5 of the contract."""

    def __init__(
        self,
        worker: Worker,
        loads: Loads,
        hardware: Hardware,
        settings: Settings,
        *,
        url: str,
        key: str | None,
        keepalive_s: float,
    ) -> None:
        self._worker = worker
        self._loads = loads
        self._hardware = hardware
        self._settings = settings
        self._url = url
        self._key = key
        self._keepalive_s = keepalive_s

    def routes(self) -> list[Route]:
        """Their part of the table."""
        return [
            Route("POST", "/admin/load", self._load, "admin"),
            Route("POST", "/admin/load/cancel", self._cancel, "admin", needs_body=False),
            Route("POST", "/admin/unload", self._unload, "admin", needs_body=False),
            Route("GET", "/admin/status", lambda request: Response.json(self._loads.status()), "admin"),
            Route("GET", "/admin/models", lambda request: Response.json(catalogue(self._hardware)), "admin"),
            Route("GET", "/admin/integrations", self._integrations, "admin"),
            Route("POST", "/admin/race", self._race, "admin"),
        ]

    def _load(self, request: HttpRequest) -> Response:
        body = LoadBody.parse(request.body)
        wait = _switch(request, "wait")
        check_name(body.model, "model", request.client)
        if body.drafter is not None:
            check_name(body.drafter, "drafter", request.client)
        load = self._loads.begin(Wish.asked(body, self._settings), body.thinking)
        if wait:
            while not load.waited(0.25):
                if request.gone():  # whoever asked may look at /admin/status; the load goes on
                    break
            else:
                load.wait()
                return Response.json({"id": load.id, **self._loads.status()})
        return Response.json({"id": load.id, "status": "loading", "model": load.name}, 202)

    def _cancel(self, request: HttpRequest) -> Response:
        load = self._loads.cancel()
        if load is None:
            return Response.json({"cancelled": False, "id": None})
        return Response.json({"cancelled": True, "id": load.id, "phase": load.phase})

    def _unload(self, request: HttpRequest) -> Response:
        return Response.json({"freed_bytes": self._loads.unload()})

    def _integrations(self, request: HttpRequest) -> Response:
        serving = self._loads.serving
        shown = request.role == "main"
        key = self._key if shown or self._key is None else PLACEHOLDER_KEY
        server = Endpoint(self._url, serving.name if serving else NO_MODEL, key=key)
        if serving is not None:
            longest = min(self._settings.generation.max_tokens_cap, serving.window - 1)
            server = replace(server, context_window=serving.window, max_output_tokens=longest)
        clients: dict[str, Any] = {name: client(server).as_dict() for name, client in CLIENTS.items()}
        return Response.json(
            {
                "url": server.url,
                "model": serving.name if serving else None,
                "clients": clients,
                "openai": openai_settings(server),
                "curl": curl(server),
            }
        )

    def _race(self, request: HttpRequest) -> Any:
        return race.start(request, self._worker, self._loads, self._keepalive_s)


def _switch(request: HttpRequest, name: str) -> bool:
    text = request.query.get(name, "false").lower()
    if text not in _SWITCHES:
        raise ValidationFailed(f"query -> {name}: Input should be a valid boolean", name)
    return _SWITCHES[text]
