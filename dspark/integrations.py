"""How the clients that people use are pointed at a server: by environment, by arguments, by a file of theirs."""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROVIDER = "mlx-dspark"
KEY_VARIABLE = "MLX_DSPARK_API_KEY"
NO_KEY = "not-needed"  # clients insist on some key
# Reading a long prompt takes minutes; clients that wait less ask again and again.
TIMEOUT_MS = 3_600_000


@dataclass(frozen=True)
class Endpoint:
    """A server as a client sees it: `url` is without `/v1`, sizes are in tokens, `key` is None where none is needed."""

    url: str
    model: str
    context_window: int = 32768
    max_output_tokens: int = 8192
    key: str | None = None

    @property
    def answer_tokens(self) -> int:
        """The longest answer that a client is told of: it keeps that much of the window free, and needs the rest."""
        return min(self.max_output_tokens, self.context_window // 4)

    @property
    def shown_key(self) -> str:
        """What goes where a client wants a key."""
        return self.key or NO_KEY


@dataclass(frozen=True)
class ConfigFile:
    """A file that a client reads, under the user's home; `content` is all of it where there is none yet."""

    path: str
    content: str


@dataclass(frozen=True)
class Integration:
    """One client. `command` with `arguments` and `environment` starts it without any file.

    `folder` names a variable for a folder that holds `file`, for a client that takes its settings in no other way.
    """

    id: str
    title: str
    command: str
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    file: ConfigFile | None = None
    folder: str | None = None

    @property
    def line(self) -> str:
        """A line for a shell that starts it; of `folder` it knows nothing."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join((*variables, self.command, *map(shlex.quote, self.arguments)))

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "id": self.id,
            "title": self.title,
            "environment": dict(self.environment),
            "command": [self.command, *self.arguments],
            "line": self.line,
            "file": {"path": self.file.path, "content": self.file.content} if self.file else None,
        }


def claude(server: Endpoint) -> Integration:
    """Claude Code."""
    environment = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": server.shown_key,
        "ANTHROPIC_MODEL": server.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": server.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": server.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": server.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(server.context_window),  # else it takes 200,000 for granted
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(server.answer_tokens),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "API_TIMEOUT_MS": str(TIMEOUT_MS),
    }
    file = ConfigFile(".claude/settings.json", _json({"env": environment}))
    return Integration("claude", "Claude Code", "claude", environment, file=file)


def codex(server: Endpoint) -> Integration:
    """Codex, which speaks the responses dialect alone."""
    provider: dict[str, str | int] = {
        "name": PROVIDER,
        "base_url": f"{server.url}/v1",
        "wire_api": "responses",
        "env_key": KEY_VARIABLE,
        "stream_idle_timeout_ms": TIMEOUT_MS,
    }
    top: dict[str, str | int] = {
        "model": server.model,
        "model_provider": PROVIDER,
        "model_context_window": server.context_window,
    }
    pairs = {**top, **{f"model_providers.{PROVIDER}.{name}": value for name, value in provider.items()}}
    arguments = tuple(part for name, value in pairs.items() for part in ("-c", f"{name}={_toml(value)}"))
    lines = [f"{name} = {_toml(value)}" for name, value in top.items()]
    lines += ["", f"[model_providers.{PROVIDER}]", *(f"{name} = {_toml(value)}" for name, value in provider.items())]
    file = ConfigFile(".codex/config.toml", "\n".join(lines) + "\n")
    return Integration("codex", "Codex", "codex", {KEY_VARIABLE: server.shown_key}, arguments, file)


def opencode(server: Endpoint) -> Integration:
    """OpenCode, which reads a whole configuration from a variable."""
    sizes = {"context": server.context_window, "output": server.answer_tokens}
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"{PROVIDER}/{server.model}",
        "provider": {
            PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "name": PROVIDER,
                "options": {"baseURL": f"{server.url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
                "models": {server.model: {"name": server.model, "limit": sizes}},
            }
        },
    }
    environment = {KEY_VARIABLE: server.shown_key, "OPENCODE_CONFIG_CONTENT": json.dumps(config)}
    file = ConfigFile(".config/opencode/opencode.json", _json(config))
    return Integration("opencode", "OpenCode", "opencode", environment, file=file)


def pi(server: Endpoint) -> Integration:
    """pi, which reads its providers from a file in its folder."""
    model = {
        "id": server.model,
        "name": server.model,
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": server.context_window,
        "maxTokens": server.answer_tokens,
    }
    provider = {
        "baseUrl": f"{server.url}/v1",
        "api": "openai-completions",
        # A command, as how a variable is written differs between versions of pi.
        "apiKey": f"!printenv {KEY_VARIABLE} || echo {NO_KEY}",
        "models": [model],
    }
    file = ConfigFile(".pi/agent/models.json", _json({"providers": {PROVIDER: provider}}))
    arguments = ("--provider", PROVIDER, "--model", server.model)
    environment = {KEY_VARIABLE: server.shown_key}
    return Integration("pi", "pi", "pi", environment, arguments, file, folder="PI_CODING_AGENT_DIR")


CLIENTS: Mapping[str, Callable[[Endpoint], Integration]] = {
    "claude": claude,
    "codex": codex,
    "opencode": opencode,
    "pi": pi,
}


def openai_settings(server: Endpoint) -> dict[str, str]:
    """What any other client of OpenAI's API is told."""
    return {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": server.shown_key, "model": server.model}


def curl(server: Endpoint) -> str:
    """A request to try a server with."""
    body = json.dumps({"model": server.model, "messages": [{"role": "user", "content": "Say hello."}]})
    key = f" -H {shlex.quote(f'Authorization: Bearer {server.key}')}" if server.key else ""
    return f"curl {server.url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d {shlex.quote(body)}"


def write(file: ConfigFile, home: Path) -> Path:
    """Put a client's settings where it keeps them; what JSON was there stays, but for what this has to say.

    Raises:
        OSError, ValueError: it cannot be read or written, or holds something that this cannot be put into.
    """
    path = home / file.path
    content = file.content
    if path.exists():
        if path.suffix != ".json":
            raise ValueError(f"{path} is there already: put this into it by hand\n\n{file.content}")
        there = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(there, dict):
            raise ValueError(f"{path} holds no JSON object")
        content = _json(_merged(there, json.loads(file.content)))
        path.with_name(f"{path.name}.before-{PROVIDER}").write_bytes(path.read_bytes())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def _merged(there: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {
        **there,
        **{
            name: _merged(there[name], value)
            if isinstance(value, dict) and isinstance(there.get(name), dict)
            else value
            for name, value in new.items()
        },
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _toml(value: str | int) -> str:
    return json.dumps(value)
