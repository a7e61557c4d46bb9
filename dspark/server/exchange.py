"""What a handler sees and what it gives back."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["main", "sub", "none"]


class Headers(Mapping[str, str]):
    """Header fields by name, whatever their case. A field that was sent several times is joined with `, `."""

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._fields: dict[str, str] = {}
        for name, value in fields:
            key = name.lower()
            self._fields[key] = f"{self._fields[key]}, {value}" if key in self._fields else value

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


@dataclass(frozen=True)
class HttpRequest:
    """One request.

    `path` is decoded, without query, `/v1` and trailing slash; `client` the address of the peer without its port.
    `role` says whose key was shown ("none" where none was needed); `params` holds the parameters of the route's path.
    `gone()` is true once nobody waits for the answer any more: the peer closed its side, or the server ends and cuts
    what is left. It takes microseconds and may be called from any thread.
    """

    method: str
    path: str
    headers: Headers
    client: str
    id: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    role: Role = "none"
    params: Mapping[str, str] = field(default_factory=dict)
    gone: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Response:
    """A whole answer. The transport adds length, date, request id and what browsers need."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def json(cls, value: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> "Response":
        """`value` as JSON; raises `ValueError` for numbers that JSON does not have."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return cls(status, text.encode("utf-8", "backslashreplace"), headers=headers)


@dataclass(frozen=True)
class EventStream:
    """An answer that is sent piece by piece.

    The status line is sent at once, so whatever can be refused is refused before this is returned. The thread of the
    connection takes the frames one by one and closes the iterator (`close()`, where it has one) on every way out: at
    its end, when the peer has vanished, when the server stops. While nothing is to be sent the iterator asks
    `HttpRequest.gone()` about twice a second, and gives a keep-alive frame when it is time for one.
    """

    frames: Iterator[bytes]
    content_type: str = "text/event-stream"
    headers: tuple[tuple[str, str], ...] = ()


Answer = Response | EventStream
Handler = Callable[[HttpRequest], Answer]
