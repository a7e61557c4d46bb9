"""`mlx-dspark serve` as a user starts it: a process of its own, on a port of its own."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from bytewise import bytewise
from tiny import DEEPSPEC, head_weights, write_head, write_llama

PROGRAM = (sys.executable, "-c", "from dspark.commands.entry import main; main()")
LOAD_SECONDS = 120
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SERVE = shlex.split(re.search(r"^mlx-dspark serve(.*)$", README, re.MULTILINE)[1])  # the flags of its first example
VOCABULARY = 304
# Tools, past calls and a thought that begins when it is asked for: what the clients can meet.
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}"
    "{% for tool_call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ tool_call.name }}"}\n</tool_call>{% endfor %}\n{% endfor %}'
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)


@dataclass(frozen=True)
class Served:
    """A server that answers. `log` is where it writes its access log and warnings."""

    url: str
    key: str | None
    home: Path
    log: Path

    def get(self, path: str) -> Any:
        """The JSON of a route."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=60, trust_env=False).raise_for_status().json()


@contextmanager
def serving(home: Path, *flags: str, key: str | None = None, **environment: str) -> Iterator[Served]:
    """Start it with these flags, wait until its model answers, and end it as a user would."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "serve.log"
    known = {"MLX_DSPARK_HOME": str(home), "MLX_DSPARK_PORT": "0", **environment}
    known |= {"MLX_DSPARK_API_KEY": key} if key else {}
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*PROGRAM, "serve", *flags],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **known},
        )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, log.read_text()
        served = Served(first.split()[-1], key, home, log)
        deadline = time.monotonic() + LOAD_SECONDS
        while served.get("/health")["status"] == "loading":
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield served
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        process.communicate()


def write_pair(folder: Path) -> tuple[str, str]:
    """A random target over bytes that knows tools and thoughts, and a random drafter for it."""
    tokenizer = bytewise(("<think>", "</think>"))
    shape = {"vocab_size": VOCABULARY, "eos_token_id": tokenizer.eos_token_id, "max_position_embeddings": 4096}
    target = write_llama(folder / "tiny-target", 4, **shape)
    tokenizer._tokenizer.chat_template = TEMPLATE
    tokenizer._tokenizer.save_pretrained(target)
    weights = head_weights(vocabulary=VOCABULARY, draft_vocabulary=VOCABULARY)
    head = write_head(folder / "tiny-head", {**DEEPSPEC, "vocab_size": VOCABULARY}, weights)
    return str(target), str(head)
