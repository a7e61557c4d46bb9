"""The port, and the server that runs there: asked over HTTP, since a variable or a process list proves nothing."""

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dspark.doctor.check import Check, Subject

PORT = Subject("port", "Port")
SERVER = Subject("server", "Server")
KEY = Subject("server.key", "API key")

KEY_VARIABLE = "MLX_DSPARK_API_KEY"
TIMEOUT_S = 3.0
LONGEST_ANSWER_BYTES = 1 << 20
STATES = ("ok", "loading", "no_model")


@dataclass(frozen=True)
class Address:
    """Where the server would listen."""

    host: str = "127.0.0.1"
    port: int = 8080

    @property
    def url(self) -> str:
        """To be asked from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


def port_and_server(address: Address, key: str | None, key_place: str = KEY_VARIABLE) -> Iterator[Check]:
    """Is the port free; if not, who has it, what does a server of ours run, and does it take `key`.

    `key_place` is where the key was given.
    """
    import httpx

    where = f"{address.host}:{address.port}"
    try:
        with socket.create_connection((httpx.URL(address.url).host, address.port), TIMEOUT_S):
            pass
    except ConnectionRefusedError:
        yield PORT.ok(f"{where} is free")
        yield SERVER.ok(f"none is running at {where}")
        return
    except OSError as error:
        todo = "check the address, and any firewall on this machine"
        yield PORT.warn(f"{where} does not answer ({error.strerror or error})", todo)
        return
    # A proxy of the environment has no business with an address of this machine.
    with httpx.Client(base_url=address.url, timeout=TIMEOUT_S, trust_env=False) as client:
        status, health = _get(client, "/health")
        owner = holder(address.port)
        if not _is_ours(status, health):
            todo = "stop it, or start the server with another --port"
            yield PORT.warn(f"{where} is taken by {owner or 'another program'}", todo)
            yield SERVER.ok(f"none is running at {where}")
            return
        yield PORT.ok(f"{where} is taken by the server{f' ({owner})' if owner else ''}")
        yield _server(address, status, health)
        yield _key(client, address, key, key_place)


def holder(port: int) -> str | None:
    """The program that listens on a port, `name (pid N)`; None where it is another user's and cannot be seen."""
    import psutil

    for process in psutil.process_iter():
        try:
            connections = process.net_connections(kind="tcp")
            if any(link.status == psutil.CONN_LISTEN and link.laddr.port == port for link in connections):
                return f"{process.name()} (pid {process.pid})"
        except (psutil.Error, OSError):
            continue
    return None


def _get(client: Any, path: str, headers: dict[str, str] | None = None) -> tuple[int | None, Any]:
    """Status and JSON body; None for what did not come, was too long, or was no JSON."""
    import httpx

    body = b""
    try:
        with client.stream("GET", path, headers=headers) as answer:
            for part in answer.iter_bytes():
                body += part
                if len(body) > LONGEST_ANSWER_BYTES:
                    break
    except httpx.HTTPError:
        return None, None
    try:
        return answer.status_code, json.loads(body)
    except (ValueError, RecursionError):
        return answer.status_code, None


def _is_ours(status: int | None, health: Any) -> bool:
    """Other servers answer /health too: ours names the mode along with the model, or has a word of its own."""
    if not isinstance(health, dict) or status is None:
        return False
    state = health.get("status")
    return state in ("loading", "no_model") or (state is not None and {"model", "mode"} <= health.keys())


def _server(address: Address, status: int | None, health: dict[str, Any]) -> Check:
    where = address.url
    if status != 200 or health.get("status") not in STATES:
        return SERVER.fail(f"{where} is up but not well (HTTP {status}, {health.get('status')})", "restart it")
    if health["status"] == "no_model":
        return SERVER.ok(f"{where} runs, with no model loaded")
    if health["status"] == "loading":
        return SERVER.ok(f"{where} is loading ({health.get('phase') or 'phase unknown'})")
    seen = f"{where} runs {health.get('model')}, mode {health.get('mode')}, drafter {health.get('drafter') or 'none'}"
    warnings = health.get("warnings")
    if isinstance(warnings, list) and warnings:
        return SERVER.warn(f"{seen}; it warns: {'; '.join(map(str, warnings))}", "follow what the server says")
    return SERVER.ok(seen)


def _key(client: Any, address: Address, key: str | None, place: str) -> Check:
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        todo = "set it to the server's key: printable ASCII without white space"
        return KEY.fail(f"the key in {place} cannot be sent", todo)
    status, _ = _get(client, "/v1/models", {"Authorization": f"Bearer {key}"} if key else None)
    named = f"the key in {place}" if key else "a request without a key"
    if status == 200:
        return KEY.ok(f"{address.url} takes {named}")
    if status == 401 and key:
        return KEY.fail(f"{address.url} refuses {named}", f"set {place} to the key that the server runs with")
    if status == 401:
        return KEY.warn(f"{address.url} wants a key, and {KEY_VARIABLE} is not set", f"set {KEY_VARIABLE} to its key")
    if status == 429:
        return KEY.warn(f"{address.url} has locked this address out after wrong keys", "wait for a few minutes")
    return KEY.warn(f"{address.url} answers {status or 'nothing'} to {named}", "see the server's log")
