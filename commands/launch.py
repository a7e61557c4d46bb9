"""`mlx-dspark launch`: a client started against a running server, with nothing of the user's changed."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dspark.commands.options import takes
from dspark.errors import StorageError, UsageError
from dspark.settings import Settings, api_key

if TYPE_CHECKING:
    from dspark.integrations import Endpoint, Integration

PACKAGES = {
    "claude": "@anthropic-ai/claude-code",
    "codex": "@openai/codex",
    "opencode": "opencode-ai",
    "pi": "@earendil-works/pi-coding-agent",
}


class ClientName(StrEnum):
    """The clients that are known."""

    CLAUDE = "claude"
    CODEX = "codex"
    OPENCODE = "opencode"
    PI = "pi"


@takes("host", "port", "api_key", "api_key_file")
def launch(
    settings: Settings,
    client: Annotated[ClientName, Argument(help="Which one.")],
    arguments: Annotated[list[str] | None, Argument(metavar="[-- ARGS]", help="For the client itself.")] = None,
    url: Annotated[str | None, Option(metavar="URL", help="Where the server is. Default: --host and --port.")] = None,
    print_env: Annotated[
        bool, Option("--print-env", help="Print the environment for a shell to evaluate, and start nothing.")
    ] = False,
    write_config: Annotated[
        bool, Option("--write-config", help="Put the settings into the client's own file, and start nothing.")
    ] = False,
) -> int:
    """Start a coding agent against a running server, by environment and arguments alone.

    Examples:

        mlx-dspark launch claude -- -p "What does this repository do?"

        eval "$(mlx-dspark launch opencode --print-env)"
    """
    from dspark.integrations import CLIENTS

    if print_env and write_config:
        raise UsageError("--print-env and --write-config are two ways: leave one of them")
    integration = CLIENTS[client](_endpoint(settings, url))
    if print_env:
        return _print_env(integration)
    if write_config:
        return _write_config(integration)
    return _start(integration, arguments or [])


def _endpoint(settings: Settings, url: str | None) -> Endpoint:
    from dspark.client import Client
    from dspark.integrations import Endpoint

    if url is None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.server.host, settings.server.host).strip("[]")
        url = f"http://{f'[{host}]' if ':' in host else host}:{settings.server.port}"
    key = api_key(settings)
    with Client(url, key) as server:
        model = server.model()
        window = model.get("context_window")
        longest = model.get("max_tokens")
        return Endpoint(
            server.url,
            str(model.get("id")),
            **({"context_window": window} if isinstance(window, int) else {}),
            **({"max_output_tokens": longest} if isinstance(longest, int) else {}),
            key=key,
        )


def _print_env(integration: Integration) -> int:
    from dspark.commands.rendering import print_lines, stderr_console

    for name, value in integration.environment.items():
        print(f"export {name}={shlex.quote(value)}")  # noqa: T201
    if integration.folder is not None:
        note = f"{integration.title} also needs its file: run with --write-config"
        print_lines(stderr_console(), note)
    elif integration.arguments:
        print(f"# {shlex.join((integration.command, *integration.arguments))}")  # noqa: T201
    return 0


def _write_config(integration: Integration) -> int:
    from dspark.commands.rendering import print_lines, stderr_console
    from dspark.integrations import write

    assert integration.file is not None
    try:
        path = write(integration.file, Path.home())
    except (OSError, ValueError, RuntimeError) as error:
        raise StorageError(f"the settings of {integration.title} cannot be written: {error}") from error
    print_lines(stderr_console(), f"wrote {path}")
    return 0


def _start(integration: Integration, arguments: list[str]) -> int:
    program = shutil.which(integration.command)
    if program is None:
        raise UsageError(
            f"{integration.command} is not installed: npm install -g {PACKAGES[integration.id]}, "
            f"or see what it needs with --print-env"
        )
    with ExitStack() as stack:
        environment = {**os.environ, **integration.environment}
        if integration.folder is not None and integration.file is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlx-dspark-")))
            (folder / Path(integration.file.path).name).write_text(integration.file.content, encoding="utf-8")
            environment[integration.folder] = str(folder)
        # Ctrl-C is the client's to handle; a handler of ours is gone in the child, an ignored signal would not be.
        before = signal.signal(signal.SIGINT, lambda number, frame: None)
        stack.callback(signal.signal, signal.SIGINT, before)
        return subprocess.run([program, *integration.arguments, *arguments], env=environment).returncode
