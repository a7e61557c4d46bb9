"""What browsers say about where a request comes from, and what they are told in return."""

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from dspark.errors import Forbidden
from dspark.server.exchange import Headers

_METHODS = "GET, HEAD, POST, OPTIONS"
_HEADERS = ("Authorization", "Content-Type", "x-api-key", "x-request-id", "anthropic-version", "anthropic-beta")
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_ASKED_LIMIT = 64


def is_loopback(host: str) -> bool:
    """Whether a host name or address, IPv6 ones with or without brackets, always means this machine."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


class Browsers:
    """Which web pages may talk to the server, and under which names.

    Args:
        loopback: the server listens on this machine alone, so only its own names for itself are believed.
        cors_origins: origins (`https://chat.example`) that may, besides those on this machine; `*` for all.
        server_aliases: further names of this machine, for `Host`.
    """

    def __init__(self, *, loopback: bool, cors_origins: Iterable[str] = (), server_aliases: Iterable[str] = ()) -> None:
        self._loopback = loopback
        self._origins = frozenset(origin.lower().rstrip("/") for origin in cors_origins)
        self._aliases = frozenset(host_name(alias) for alias in server_aliases)

    def check(self, headers: Headers) -> None:
        """Raise `Forbidden` for a foreign Origin, and for a foreign Host where that means DNS rebinding."""
        origin = headers.get("origin")
        if origin is not None and not self._allows(origin):
            raise Forbidden("requests from this web page are refused: add its origin to the setting cors_origins")
        host = headers.get("host")
        if self._loopback and host is not None:
            name = host_name(host)
            if not is_loopback(name) and name not in self._aliases:
                raise Forbidden(
                    "the Host of this request is no name of this machine: use localhost, or add it to the setting "
                    "server_aliases"
                )

    def _allows(self, origin: str) -> bool:
        if "*" in self._origins or origin.lower() in self._origins:
            return True
        try:
            url = urlsplit(origin)
            return url.scheme in ("http", "https") and url.hostname is not None and is_loopback(url.hostname)
        except ValueError:
            return False

    def answer_headers(self, headers: Headers) -> tuple[tuple[str, str], ...]:
        """What lets the page read the answer. Credentials are never allowed: keys travel in headers of their own."""
        origin = headers.get("origin")
        if origin is None or not self._allows(origin):
            return (("Vary", "Origin"),)
        allowed = "*" if "*" in self._origins else origin
        return (
            ("Access-Control-Allow-Origin", allowed),
            ("Access-Control-Expose-Headers", "x-request-id, request-id, Retry-After"),
            ("Vary", "Origin"),
        )

    def preflight(self, headers: Headers) -> tuple[tuple[str, str], ...]:
        """The permission for any request: whether there is such a route is not for those without a key to know."""
        asked = [name.strip() for name in headers.get("access-control-request-headers", "").split(",")[:_ASKED_LIMIT]]
        known = {name.lower() for name in _HEADERS}
        more = [name for name in asked if _HEADER_NAME.fullmatch(name) and name.lower() not in known]
        return (
            ("Access-Control-Allow-Methods", _METHODS),
            ("Access-Control-Allow-Headers", ", ".join((*_HEADERS, *more))),
            ("Access-Control-Max-Age", "600"),
        )

    @staticmethod
    def same_origin(headers: Headers) -> bool:
        """Whether the request comes from a page of this server, or from no page."""
        origin = headers.get("origin")
        return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
