"""The panel's session: a signed cookie that stands for the main key."""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable

SHORT_SECONDS = 24 * 3600
LONG_SECONDS = 30 * 24 * 3600

_COOKIE = "mlx_dspark_session"
_TOKEN = re.compile(rf"(?:^|;\s*){_COOKIE}=([0-9]{{1,12}})\.([0-9a-f]{{16}})\.([0-9a-f]{{64}})(?:;|$)")


class Sessions:
    """Makes and checks session cookies. They are signed with the key, so that a new key ends them all."""

    def __init__(self, key: str, clock: Callable[[], float] = time.time) -> None:
        self._secret = hashlib.sha256(f"mlx-dspark session {key}".encode()).digest()
        self._clock = clock

    def cookie(self, remember: bool = False) -> str:
        """The value of a `Set-Cookie` header that opens a session of 24 hours, or of 30 days with `remember`."""
        lifetime_s = LONG_SECONDS if remember else SHORT_SECONDS
        payload = f"{int(self._clock()) + lifetime_s}.{secrets.token_hex(8)}"
        value = f"{payload}.{self._signature(payload)}"
        return f"{_COOKIE}={value}; Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite=Strict"

    @staticmethod
    def ending() -> str:
        """The value of a `Set-Cookie` header that makes the browser forget its session."""
        return f"{_COOKIE}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"

    def holds(self, cookies: str) -> bool:
        """Whether a `Cookie` header holds a session of ours that has not run out."""
        found = _TOKEN.search(cookies)
        if found is None:
            return False
        expiry, nonce, signature = found.groups()
        genuine = hmac.compare_digest(signature, self._signature(f"{expiry}.{nonce}"))
        return genuine and self._clock() < int(expiry)

    def _signature(self, payload: str) -> str:
        return hmac.new(self._secret, payload.encode(), hashlib.sha256).hexdigest()
