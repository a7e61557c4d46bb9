"""Who may do what: keys, roles, lock-out, and what browsers may."""

import logging
import re
from typing import Literal

from dspark.errors import Unauthenticated, UsageError
from dspark.server.exchange import HttpRequest, Role
from dspark.server.keys import SubKeys, digest, same_key
from dspark.server.lockout import Lockout
from dspark.server.origins import Browsers, is_loopback
from dspark.server.sessions import Sessions

Access = Literal["open", "inference", "status", "admin"]

_BEARER = re.compile(r"bearer[ \t]+(.+)", re.IGNORECASE)

_logger = logging.getLogger("dspark.server")


def check_exposure(address: str, protected: bool) -> None:
    """Raise `UsageError` for a server that other machines reach and that asks for no key."""
    if not protected and not is_loopback(address):
        raise UsageError(
            f"An API key is required when binding to a non-loopback host ({address}): "
            "give one with --api-key-file FILE or MLX_DSPARK_API_KEY, or bind to 127.0.0.1"
        )


class Guard:
    """Decides about every request before its body is read.

    Without a `key` everything is open, and sub-keys do not matter. What can be a key is for the settings to say.
    """

    def __init__(
        self,
        *,
        browsers: Browsers,
        key: str | None = None,
        sub_keys: SubKeys | None = None,
        open_inference: bool = False,
        lockout: Lockout | None = None,
    ) -> None:
        self._browsers = browsers
        self._key_digest = digest(key) if key is not None else None
        self._sub_keys = sub_keys
        self._open_inference = open_inference
        self._lockout = lockout or Lockout()
        self.sessions = Sessions(key) if key is not None else None

    def check_browser(self, request: HttpRequest) -> None:
        """Raise `Forbidden` for what a foreign page sent."""
        self._browsers.check(request.headers)

    def cors_headers(self, request: HttpRequest) -> tuple[tuple[str, str], ...]:
        """What is to be added to every answer."""
        return self._browsers.answer_headers(request.headers)

    def preflight(self, request: HttpRequest) -> tuple[tuple[str, str], ...]:
        """What is to be added to the answer to a CORS preflight."""
        return self._browsers.preflight(request.headers)

    def role(self, request: HttpRequest, access: Access) -> Role:
        """Whose key was shown ("none" where none is needed).

        Raises:
            Unauthenticated: a key is needed and is missing or wrong. LockedOut: after too many wrong ones.
        """
        if self._key_digest is None or access == "open" or (access == "inference" and self._open_inference):
            return "none"
        self._lockout.check(request.client)
        if self._in_session(request):
            return "main"
        keys = _keys(request)
        if not keys:
            raise Unauthenticated("API key required")
        roles = {self._role_of(key) for key in keys}
        if roles == {"none"}:
            if self._lockout.wrong(request.client):
                _logger.warning("%s is locked out after wrong keys, the last %s…", request.client, digest(keys[0])[:8])
            raise Unauthenticated("Invalid API key")
        self._lockout.right(request.client)
        if "main" in roles:
            return "main"
        if access == "admin":
            raise Unauthenticated("Invalid API key")
        return "sub"

    def _role_of(self, key: str) -> Role:
        if self._key_digest is not None and same_key(key, self._key_digest):
            return "main"
        if self._sub_keys is not None and self._sub_keys.find(key) is not None:
            return "sub"
        return "none"

    def _in_session(self, request: HttpRequest) -> bool:
        """A cookie comes along whatever page sends the request, so that only our own pages may use it."""
        cookies = request.headers.get("cookie")
        if cookies is None or self.sessions is None or not self._browsers.same_origin(request.headers):
            return False
        return self.sessions.holds(cookies)


def _keys(request: HttpRequest) -> list[str]:
    """The keys that a request shows: clients that know both headers may fill one of them with something else."""
    bearer = _BEARER.fullmatch(request.headers.get("authorization", ""))
    named = request.headers.get("x-api-key", "")
    return [key for key in (bearer[1] if bearer else "", named) if key]
