"""A server that answers the control plane as the HTTP contract says, from a script of states."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

READY = {"status": "ok", "model": "org/m", "mode": "dspark", "max_draft": "auto", "warnings": ["hot"]}

METRICS = {
    "uptime_seconds": 60.0,
    "requests": {"completed": 4, "cancelled": 1, "failed": 0, "withdrawn": 0},
    "tokens": {"prompt": 900, "cached": 700, "completion": 80, "drafted": 60, "accepted": 40},
    "queue": {"waiting": 2, "running": 1, "limit": 64},
    "memory": {"active_bytes": 1_500_000_000, "cache_bytes": 20_000_000, "peak_bytes": 2_000_000_000},
    "system": {"total_bytes": 16_000_000_000, "available_bytes": 5_000_000_000, "pressure": "normal"},
    "roofline": {"decode_tokens_per_sec": 30.0, "ceiling_tokens_per_sec": 40.0, "roofline_ratio": 0.75},
    "memory_guard": {
        "state": "on",
        "pressure": "normal",
        "binds": "the machine's free memory",
        "room_bytes": 4_500_000_000,
        "shed_bytes": 0,
        "refused": 3,
        "shortened": 0,
    },
    "prefix_cache": {
        "mode": "trim",
        "reason": None,
        "slots": 2,
        "slot_limit": 8,
        "bytes": 30_000_000,
        "limit_bytes": 2_000_000_000,
        "hits": 3,
        "partials": 1,
        "misses": 1,
        "reused_tokens": 700,
        "read_tokens": 200,
        "last": {"outcome": "partial", "prompt_tokens": 300, "shared_tokens": 120, "cached_tokens": 100},
        "disk": None,
    },
}
ROUNDS = {
    "rounds": [
        {"i": 0, "committed": 1, "ms": 900.0},
        {"i": 1, "committed": 3, "ms": 100.0},
        {"i": 2, "committed": 1, "ms": 100.0},
    ],
    "positions": [
        {"position": 0, "offered": 20, "accepted": 15, "rate": 0.75},
        {"position": 1, "offered": 15, "accepted": 3, "rate": 0.2},
    ],
    "accepted_histogram": {"0": 5, "1": 12, "2": 3},
}

FIGURES = {"completion_tokens": 3, "decode_tokens_per_sec": 10.0, "accept_len": None}
RACE = (
    {"type": "start"},
    *({"type": "arm_start", "arm": at, "label": name} for at, name in enumerate(("baseline", "dspark"))),
    *({"type": "arm_done", "arm": at, "label": name, **FIGURES} for at, name in enumerate(("baseline", "dspark"))),
    {"type": "verdict", "outcome": "identical", "arms": [{"arm": 1, "label": "dspark", "outcome": "identical"}]},
    {"type": "done"},
)


class ContractServer:
    """`states` are what `/health` says, one after another, the last for ever; `models` are listed.

    `asked` are the requests that came.
    """

    def __init__(self, *states, key=None, refusal=None, error=None):
        self.states = list(states or (READY,))
        self.key, self.refusal, self.error = key, refusal, error
        self.models = [{"id": "org/m", "context_window": 4096, "max_tokens": 1024}]
        self.race = RACE
        self.asked = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server._answer(self, None)

            def do_POST(self):
                server._answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def body(self):
        return next(body for route, body in self.asked if route in ("/admin/load", "/admin/race"))

    def _answer(self, handler, body):
        self.asked.append((handler.path, body))
        if handler.path != "/health" and self.key and handler.headers.get("Authorization") != f"Bearer {self.key}":
            return self._send(handler, 401, _error("Invalid API key", "authentication_error"))
        if handler.path == "/metrics":
            return self._send(handler, 200, METRICS)
        if handler.path.startswith("/rounds"):
            return self._send(handler, 200, ROUNDS)
        if handler.path == "/v1/models":
            return self._send(handler, 200, {"data": self.models})
        if handler.path == "/admin/race":
            return self._send(handler, *(self.refusal or (200, _events(*self.race))))
        if handler.path == "/admin/load":
            return self._send(handler, *(self.refusal or (202, {"id": "load-1"})))
        state = self.states[0]
        if handler.path == "/admin/status":
            loading = state.get("status") == "loading"
            return self._send(handler, 200, {"loading": loading, "error": None if loading else self.error})
        if len(self.states) > 1:
            self.states.pop(0)
        return self._send(handler, state.get("code", 200), state)

    @staticmethod
    def _send(handler, status, answer):
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


def _events(*events):
    return "".join(f": wait\n\nevent: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events).encode()


def _error(message, kind="invalid_request_error"):
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def refused(status, message):
    return status, _error(message)
