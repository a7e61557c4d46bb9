"""A whole server in this process, on a port of its own, with a tiny pair that can read and say any text."""

import json
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from bytewise import bytewise
from tiny import DEEPSPEC, head_weights, write_head, write_llama

from dspark.server.app import App
from dspark.server.transport import bind
from dspark.settings import resolve

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCABULARY = 304  # a multiple of what packed weights need; the tokenizer fills 265 of them
GENERATION = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


def write_target(
    folder: Path, seed: int = 0, template: str = TEMPLATE, marks: Sequence[str] = (), **overrides: Any
) -> str:
    """A folder with a random llama over bytes, which can also say `marks`."""
    tokenizer = bytewise(marks)
    eos = tokenizer.eos_token_id
    write_llama(
        folder, seed, **{"vocab_size": VOCABULARY, "eos_token_id": eos, "max_position_embeddings": 2048, **overrides}
    )
    tokenizer._tokenizer.chat_template = template
    tokenizer._tokenizer.save_pretrained(folder)
    return str(folder)


def write_drafter(folder: Path) -> str:
    """A random head for it."""
    config = {**DEEPSPEC, "vocab_size": VOCABULARY}
    return str(write_head(folder, config, head_weights(vocabulary=VOCABULARY, draft_vocabulary=VOCABULARY)))


class Live:
    """The running server, and ways to ask it."""

    def __init__(self, app: App, key: str | None) -> None:
        self.app = app
        self.url = app.http.url
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def get(self, path: str, **options: Any) -> Any:
        """The JSON of a route that answers well."""
        response = self.http.get(path, **options)
        assert response.status_code == 200, response.text
        return response.json()

    def get_text(self, path: str) -> str:
        """The text of a route that answers well."""
        response = self.http.get(path)
        assert response.status_code == 200, response.text
        return response.text

    def post(self, path: str, body: dict[str, Any] | None = None, status: int = 200, **options: Any) -> Any:
        """The JSON of an answer with that status."""
        response = self.http.post(path, json=body, **options)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    def stream(self, path: str, body: dict[str, Any]) -> list[tuple[str | None, Any]]:
        """All events of a stream, as (name, data)."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            return list(events(response))

    def ready(self, seconds: float = 60) -> None:
        """Wait for the end of a load."""
        deadline = time.monotonic() + seconds
        while self.app.loads.load is not None:
            assert time.monotonic() < deadline, "the load does not end"
            time.sleep(0.01)


def events(response: httpx.Response):
    """Server-sent events as they come; comments are passed over."""
    name, data = None, []
    for line in response.iter_lines():
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].strip())
        elif not line and data:
            text = "\n".join(data)
            yield name, text if text == "[DONE]" else json.loads(text)
            name, data = None, []


@contextmanager
def served(*, key: str | None = None, load: bool = True, **flags: Any):
    """A server with these settings, stopped at the end; with `load` the model that they name is loaded first."""
    settings = resolve(flags, environment={})
    app = App(bind("127.0.0.1", 0, protected=key is not None), settings, key, measuring=False)
    app.start()
    live = Live(app, key)
    try:
        if load:
            app.load().wait()
        yield live
    finally:
        live.http.close()
        app.stop(finish_s=0.2)


class Blocking:
    """A job that holds the worker."""

    def __init__(self):
        self.release = threading.Event()

    def run(self):
        self.release.wait(20)

    def fail(self, error):
        pass

    def cancel(self):
        self.release.set()


def in_threads(*calls):
    """Run calls at once, and give their results in order; the first error is raised."""
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(at: int) -> None:
        try:
            results[at] = calls[at]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    return results


def body_for(path: str, prompt: str, **fields: Any) -> dict[str, Any]:
    """The body of one question in the dialect of `path`."""
    if path.endswith("/completions") and "chat" not in path:
        return {"model": "m", "prompt": prompt, **fields}
    if path.endswith("/responses"):
        if "max_tokens" in fields:
            fields["max_output_tokens"] = fields.pop("max_tokens")
        return {"model": "m", "input": prompt, **fields}
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}


def text_of(path: str, answer: dict[str, Any]) -> str:
    """The text of a whole answer."""
    if path.endswith("/messages"):
        return "".join(block.get("text", "") for block in answer["content"])
    if path.endswith("/responses"):
        return "".join(part["text"] for item in answer["output"] for part in item.get("content", []))
    choice = answer["choices"][0]
    return choice["message"]["content"] if "chat" in path else choice["text"]


def streamed_text(path: str, frames: list[tuple[str | None, Any]]) -> str:
    """The joined text of a stream."""
    pieces = []
    for name, data in frames:
        if data == "[DONE]":
            continue
        if path.endswith("/messages"):
            pieces.append(data["delta"].get("text", "") if name == "content_block_delta" else "")
        elif path.endswith("/responses"):
            pieces.append(data["delta"] if name == "response.output_text.delta" else "")
        elif data.get("choices"):
            choice = data["choices"][0]
            pieces.append((choice["delta"].get("content") or "") if "chat" in path else choice["text"])
    return "".join(pieces)
