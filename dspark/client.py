"""A running server, seen from outside: the control plane of the HTTP contract, as its client."""

import ipaddress
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from dspark.errors import DSparkError, EngineBusy, ModelNotFound, NetworkError, NotLoaded, StorageError, UsageError

POLL_SECONDS = 0.5
_CONNECT_SECONDS, _ANSWER_SECONDS = 10.0, 60.0
_ANSWER_BYTES = 16 * 1024 * 1024
_KINDS: Mapping[int, type[DSparkError]] = {404: ModelNotFound, 409: EngineBusy, 507: StorageError}


class Client:
    """One server. Every method raises NetworkError where it cannot be reached or is none, UsageError for a key it
    refuses, and the error that its own message belongs to otherwise."""

    def __init__(self, url: str, key: str | None = None) -> None:
        import httpx

        parts = _address(url)
        if key and not key.isascii():
            raise UsageError("the key has characters that no header can carry; give the server's key by --api-key-file")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
            trust_env=not _loopback(parts),  # a proxy cannot reach this machine's own addresses
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.close()

    def load(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Ask for a load and follow it: what `/health` says, again and again until the model is ready.

        Raises:
            As the class; the reason that the server gives where the load fails.
        """
        self._ask("POST", "/admin/load", json=body)
        while True:
            status = self._ask("GET", "/admin/status")
            health = self._health()
            if health.get("status") not in ("ok", "loading", "no_model"):
                raise DSparkError(f"the server at {self.url} says that it is broken; look into its log")
            yield health
            if not status.get("loading"):
                error = status.get("error")
                if error:
                    raise DSparkError(f"the server could not load {body.get('model')}: {_text(error)}")
                if health.get("status") == "ok":
                    return
                if health.get("status") != "loading":
                    raise DSparkError(f"the server at {self.url} has no model after the load; look into its log")
            time.sleep(POLL_SECONDS)

    def race(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Race there, and tell each event as it comes.

        Raises:
            As the class; the reason that the server gives where the race fails.
        """
        import httpx

        try:
            with self._http.stream("POST", f"{self.url}/admin/race", json=body) as response:
                if not response.is_success:
                    told = self._bounded(response.iter_bytes(), "/admin/race")
                    raise self._refusal(response.status_code, _json(told), "/admin/race")
                for line in self._lines(response.iter_bytes(), "/admin/race"):
                    event = _json(line[len(b"data:") :]) if line.startswith(b"data:") else None
                    if event is not None and "error" in event and event.get("type") == "error":
                        raise self._refusal(500, event, "/admin/race")
                    if event is not None:
                        yield event
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def seen(self, rounds: int) -> dict[str, Any]:
        """What it tells of itself now: `/health`, `/metrics` and the latest `rounds` of `/rounds`, by these names."""
        return {
            "health": self._health(),
            "metrics": self._ask("GET", "/metrics", headers={"Accept": "application/json"}),
            "rounds": self._ask("GET", f"/rounds?limit={rounds}"),
        }

    def model(self) -> dict[str, Any]:
        """The model that answers there, as `/v1/models` lists it.

        Raises:
            As the class; NotLoaded where none is loaded.
        """
        listed = self._ask("GET", "/v1/models").get("data")
        if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict):
            raise NotLoaded(
                f"the server at {self.url} has no model loaded: mlx-dspark load --url {self.url} --model ..."
            )
        model = dict(listed[0])
        if not isinstance(model.get("id"), str) or not isinstance(model.get("context_window"), int):
            raise NetworkError(
                f"{self.url}/v1/models tells no context_window: this is no mlx-dspark server; correct --url"
            )
        return model

    def _health(self) -> dict[str, Any]:
        health = self._ask("GET", "/health", broken=(503,))
        if "status" not in health:
            raise NetworkError(f"{self.url}/health tells no status: this is no mlx-dspark server; correct --url")
        return health

    def _ask(self, method: str, route: str, *, broken: tuple[int, ...] = (), **content: Any) -> dict[str, Any]:
        import httpx

        try:
            with self._http.stream(method, self.url + route, **content) as response:
                raw = self._bounded(response.iter_bytes(), route)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        answer = _json(raw)
        if response.is_success or (response.status_code in broken and answer is not None):
            if answer is None:
                raise NetworkError(f"{self.url}{route} does not answer in JSON: this is no mlx-dspark server")
            return answer
        raise self._refusal(response.status_code, answer, route)

    def _bounded(self, chunks: Iterator[bytes], route: str) -> bytes:
        raw = b""
        for chunk in chunks:
            raw += chunk
            if len(raw) > _ANSWER_BYTES:
                raise NetworkError(f"{self.url}{route} answers without end: this is no mlx-dspark server")
        return raw

    def _lines(self, chunks: Iterator[bytes], route: str) -> Iterator[bytes]:
        """Lines of a stream without end, none of which may be."""
        rest = b""
        for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _ANSWER_BYTES:
                raise NetworkError(f"{self.url}{route} sends a line without end: this is no mlx-dspark server")
            yield from lines

    def _unreachable(self, error: Exception) -> NetworkError:
        why = str(error) or type(error).__name__
        return NetworkError(
            f"no answer from {self.url} ({why}): start a server with 'mlx-dspark serve', or correct --url"
        )

    def _refusal(self, status: int, answer: dict[str, Any] | None, route: str) -> DSparkError:
        error = (answer or {}).get("error")
        message = _text(error.get("message") if isinstance(error, dict) else error or f"HTTP {status}")
        if status in (401, 429):
            return UsageError(f"{self.url}: {message}; give the server's key by --api-key-file or MLX_DSPARK_API_KEY")
        if answer is None:
            return NetworkError(f"{self.url}{route} answers HTTP {status}: this is no mlx-dspark server; correct --url")
        kind = _KINDS.get(status, UsageError if 400 <= status < 500 else DSparkError)
        return kind(f"the server refuses: {message}")


def _address(url: str) -> Any:
    import httpx

    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"--url {url!r} is no address ({error}); write it as http://127.0.0.1:8080") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {url!r} is no address; write it as http://127.0.0.1:8080")
    try:
        httpx.URL(url)
        parts.hostname.encode("idna")  # as the resolver does, which says so only when it is asked
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UsageError(f"--url {url!r} is no address ({error}); write it as http://127.0.0.1:8080") from error
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("--url takes scheme, host and port alone; a key goes into --api-key-file")
    return parts


def _loopback(parts: Any) -> bool:
    try:
        return ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        return str(parts.hostname) == "localhost"


def _json(raw: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(raw, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _text(value: object) -> str:
    return " ".join(str(value).split())[:500]
