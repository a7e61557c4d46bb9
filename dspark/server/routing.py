"""The table from method and path to handler, and what is done around every handler."""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import unquote

from dspark.errors import DSparkError, MethodNotAllowed, RouteNotFound
from dspark.server.auth import Access, Guard
from dspark.server.envelope import error_response
from dspark.server.exchange import Answer, EventStream, Handler, HttpRequest, Response

_AnswerT = TypeVar("_AnswerT", Response, EventStream, Answer)
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")

_logger = logging.getLogger("dspark.server")


@dataclass(frozen=True)
class Route:
    """`handler` answers `method` at `path`, without its `/v1`, to those with `access`.

    In the path `{name}` takes one segment and `{name:path}` any number of them. A POST without a body is refused
    unless `needs_body` is false.
    """

    method: str
    path: str
    handler: Handler
    access: Access
    needs_body: bool = True


@dataclass(frozen=True)
class Match:
    """A request that may be answered, once its body is there."""

    router: "Router"
    route: Route
    request: HttpRequest

    @property
    def needs_body(self) -> bool:
        """Whether a request without a body makes no sense."""
        return self.route.method == "POST" and self.route.needs_body

    def answer(self, body: bytes) -> Answer:
        """Call the handler. What it raises becomes a response."""
        request = replace(self.request, body=body)
        try:
            return self.router.dressed(self.route.handler(request), request)
        except Exception as error:
            return self.router.refuse(error, request)


class Router:
    """Finds the handler for a request and wraps it: who may, which errors, what browsers need."""

    def __init__(self, routes: Iterable[Route], guard: Guard) -> None:
        self._routes = [(_pattern(normalised(route.path)), route) for route in routes]
        self._guard = guard

    def handle(self, request: HttpRequest) -> Answer:
        """Answer a request whose body is there."""
        matched = self.match(request)
        return matched.answer(request.body) if isinstance(matched, Match) else matched

    def match(self, request: HttpRequest) -> Match | Response:
        """Who answers, or the answer where it can be given without the body."""
        try:
            self._guard.check_browser(request)
            if _is_preflight(request):
                return self.dressed(Response(204, headers=self._guard.preflight(request)), request)
            return self._find(request)
        except Exception as error:
            return self.refuse(error, request)

    def refuse(self, error: Exception, request: HttpRequest) -> Response:
        """The response that tells of `error`; the log tells of those that are defects."""
        if not isinstance(error, DSparkError):
            _logger.error("%s: %s failed", request.id, request.method, exc_info=error)
        return self.dressed(error_response(error, request.path, request.id), request)

    def dressed(self, answer: _AnswerT, request: HttpRequest) -> _AnswerT:
        """`answer` with the headers that browsers need."""
        return replace(answer, headers=(*answer.headers, *self._guard.cors_headers(request)))

    def _find(self, request: HttpRequest) -> Match | Response:
        here = [(found, route) for pattern, route in self._routes if (found := pattern.fullmatch(request.path))]
        method = "GET" if request.method == "HEAD" else request.method
        found, route = next((pair for pair in here if pair[1].method == method), (None, None))
        role = self._guard.role(request, _access(request, route, [other for _, other in here]))
        if found is not None and route is not None:
            return Match(self, route, replace(request, role=role, params=found.groupdict()))
        allow = _allowed([other.method for _, other in here])
        if request.method == "OPTIONS" and (here or request.path == "*"):
            return self.dressed(Response(204, headers=(("Allow", allow),)), request)
        if here:
            raise MethodNotAllowed(f"{request.method} is not a method of this route: use {allow}", allow)
        raise RouteNotFound("no such route: GET /openapi.json lists them all")


def normalised(path: str) -> str:
    """The path that routes are known by: decoded, without `/v1` before and slash behind."""
    path = unquote(path)
    if path == "/v1" or path.startswith("/v1/"):
        path = path[3:]
    return path.rstrip("/") or "/"


def _pattern(path: str) -> re.Pattern[str]:
    literal, pieces = 0, []
    for parameter in _PARAMETER.finditer(path):
        pieces.append(re.escape(path[literal : parameter.start()]))
        pieces.append(f"(?P<{parameter[1]}>{'.+' if parameter[2] else '[^/]+'})")
        literal = parameter.end()
    return re.compile("".join((*pieces, re.escape(path[literal:]))), re.DOTALL)


def _access(request: HttpRequest, route: Route | None, here: list[Route]) -> Access:
    """What the request must be allowed. A route is open, or open for inference, by its own method alone."""
    if route is not None and route.method == request.method:
        return route.access
    return "admin" if any(other.access == "admin" for other in here) else "status"


def _is_preflight(request: HttpRequest) -> bool:
    names = ("origin", "access-control-request-method")
    return request.method == "OPTIONS" and all(name in request.headers for name in names)


def _allowed(methods: list[str]) -> str:
    implied = ["HEAD"] if "GET" in methods else []
    return ", ".join(dict.fromkeys([*methods, *implied, "OPTIONS"]))
