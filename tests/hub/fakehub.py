"""The part of the Hugging Face Hub's HTTP interface that a download uses, over a dictionary of files."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

SHA = "5" * 40


class FakeHub:
    """`files[repository][name]` is what the Hub holds; `fetched` lists the files whose content was asked for."""

    def __init__(self):
        self.files = {}
        self.gated = set()
        self.fetched = []
        self.ranges = []
        self.before_chunk = lambda name, sent: None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                hub._answer(self, body=True)

            def do_HEAD(self):
                hub._answer(self, body=False)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler, body):
        parts = unquote(urlsplit(handler.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            repository, rest = "/".join(parts[2:4]), parts[4:]
        else:
            repository, rest = "/".join(parts[:2]), parts[2:]
        files = self.files.get(repository)
        if files is None:
            return self._send(handler, 404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"})
        if rest[:1] == ["tree"]:
            rows = [{"type": "file", "path": n, "size": len(c), "oid": self._etag(c)} for n, c in files.items()]
            return self._send(handler, 200, json.dumps(rows).encode())
        if rest[:1] != ["resolve"]:
            siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
            info = {"id": repository, "modelId": repository, "sha": SHA, "private": False, "siblings": siblings}
            return self._send(handler, 200, json.dumps(info).encode())
        if repository in self.gated:
            return self._send(handler, 403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask first"})
        name = "/".join(rest[2:])
        if name not in files:
            return self._send(handler, 404, b"{}", {"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{self._etag(files[name])}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"}
        if not body:
            return self._send(handler, 200, files[name], headers, body=False)
        self.fetched.append(name)
        start = 0
        if "Range" in handler.headers:
            self.ranges.append((name, handler.headers["Range"]))
            start = int(handler.headers["Range"].removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(files[name]) - 1}/{len(files[name])}"
        return self._send(handler, 206 if start else 200, files[name][start:], headers, name=name)

    def _send(self, handler, status, content, headers=None, body=True, name=""):
        handler.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            handler.send_header(key, value)
        handler.end_headers()
        if not body:
            return
        try:
            for start in range(0, len(content), 1 << 20):
                self.before_chunk(name, start)
                handler.wfile.write(content[start : start + (1 << 20)])
        except OSError:  # the client left, or a test hung up
            handler.close_connection = True

    @staticmethod
    def _etag(content):
        return hashlib.sha1(content).hexdigest()
