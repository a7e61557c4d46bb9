"""`GET /openapi.json`, made of the types that validate the bodies."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from dspark import __version__
from dspark.server.dialects import chat, completions, messages, responses
from dspark.server.race import RaceBody
from dspark.server.routing import Route
from dspark.server.wishes import LoadBody

_REFERENCE = "#/components/schemas/{model}"
_EVENTS = "text/event-stream"


class Described(NamedTuple):
    """What there is to say of a route; `broken` where it can tell of a server that is."""

    summary: str
    body: type[BaseModel] | None = None
    streams: bool = False
    status: int = 200
    query: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    broken: bool = False


DESCRIBED: Mapping[tuple[str, str], Described] = {
    ("POST", "/chat/completions"): Described("OpenAI chat completions", chat.Body, streams=True),
    ("POST", "/completions"): Described(
        "OpenAI completions: a raw prompt, no template", completions.Body, streams=True
    ),
    ("POST", "/messages"): Described("Anthropic messages", messages.Body, streams=True),
    ("POST", "/messages/count_tokens"): Described("The length of a prompt in tokens", messages.Body),
    ("POST", "/responses"): Described("OpenAI responses, stateless", responses.Body, streams=True),
    ("GET", "/models"): Described("The loaded model"),
    ("GET", "/models/{id}"): Described("The loaded model by its id"),
    ("GET", "/health"): Described("Whether the server works, and with what", broken=True),
    ("GET", "/metrics"): Described("Counters and gauges", query={"format": {"enum": ["json", "prometheus"]}}),
    ("GET", "/machine"): Described("The machine and what bounds it"),
    ("GET", "/calibration"): Described("The cost curves in force"),
    ("GET", "/events"): Described("Rounds and prompt progress as they happen", streams=True),
    ("GET", "/rounds"): Described("The latest rounds", query={"limit": {"type": "integer", "minimum": 0}}),
    ("GET", "/doctor"): Described("What mlx-dspark doctor prints"),
    ("GET", "/openapi.json"): Described("This document"),
    ("POST", "/admin/load"): Described(
        "Load or swap the model", LoadBody, status=202, query={"wait": {"type": "boolean"}}
    ),
    ("POST", "/admin/load/cancel"): Described("Call off the load under way"),
    ("POST", "/admin/unload"): Described("Free the model"),
    ("GET", "/admin/status"): Described("Whether a load is under way, and how the last one ended"),
    ("GET", "/admin/models"): Described("Pairs that are known, and what is on disk"),
    ("GET", "/admin/integrations"): Described("Settings for clients, ready to paste"),
    ("POST", "/admin/race"): Described("Several ways to decode one prompt, compared", RaceBody, streams=True),
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """An OpenAPI 3.1 document of `routes`, each of which must be described here."""
    bodies = sorted({one.body for one in DESCRIBED.values() if one.body}, key=lambda body: body.__module__)
    refs, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = route.path.replace(":path}", "}")
        described = DESCRIBED[route.method, path]
        ref = refs[described.body, "validation"] if described.body else None
        served = path if path.startswith(("/admin", "/health", "/metrics")) else f"/v1{path}"
        operation = _operation(described, ref, open_=route.access == "open")
        if "{id}" in path:
            operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths.setdefault(served, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "mlx-dspark", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(described: Described, body: Mapping[str, Any] | None, *, open_: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if described.streams:
        content[_EVENTS] = {}
    if "format" in described.query:
        content["text/plain"] = {"schema": {"type": "string"}}
    answers = {str(status): {"description": "Done", "content": content} for status in {200, described.status}}
    if described.broken:
        answers["503"] = {"description": "Broken", "content": content}
    failed = {
        "description": "Refused",
        "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}},
    }
    operation: dict[str, Any] = {"summary": described.summary, "responses": {**answers, "default": failed}}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": dict(body)}}}
    if described.query:
        operation["parameters"] = [
            {"name": name, "in": "query", "required": False, "schema": dict(schema)}
            for name, schema in described.query.items()
        ]
    if not open_:
        operation["security"] = [{}, {"bearer": []}, {"key": []}]
    return operation
