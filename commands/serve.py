"""`mlx-dspark serve`: the loaded pair, over HTTP, to the clients people use."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import threading
from typing import TYPE_CHECKING, Annotated

from typer import Option

from dspark.commands.options import takes
from dspark.settings import Settings, api_key

if TYPE_CHECKING:
    from dspark.server.app import App
    from dspark.server.lifecycle import Stop

INDENT = 14
_LOG = logging.getLogger("dspark.commands.serve")


@takes(
    *("host", "port", "api_key", "api_key_file"),
    *("model", "drafter", "mode", "precision", "kv_bits", "drafter_bits", "drafter_window", "profile", "warmup"),
    *("sdpa_split", "trust_remote_code", "max_draft", "lookup_drafts", "confidence_threshold", "context_window"),
    "memory_guard",
    *("default_temperature", "default_top_p", "default_top_k", "default_max_tokens", "max_tokens_cap"),
    *("enable_thinking", "reasoning_effort"),
    *("prefix_cache", "prefix_cache_slots", "prefix_cache_rungs", "prefix_cache_bytes"),
    *("prefix_cache_dir", "prefix_cache_disk_bytes"),
)
def serve(
    settings: Settings,
    no_model: Annotated[
        bool, Option("--no-model", help="Listen without a model; one is loaded later, by mlx-dspark load --url.")
    ] = False,
) -> int:
    """Serve a model to OpenAI and Anthropic clients, on this machine alone unless told otherwise.

    Ends in order on Ctrl-C or SIGTERM: answers under way get ten seconds to finish, and what was read goes to
    --prefix-cache-dir where one is given. A second signal ends it at once.

    Examples:

        mlx-dspark serve --model mlx-community/Qwen3-4B-8bit

        mlx-dspark serve --no-model --port 0

        MLX_DSPARK_API_KEY=... mlx-dspark serve --host 0.0.0.0
    """
    from dspark.server.transport import bind

    key = api_key(settings)
    http = bind(settings.server.host, settings.server.port, protected=key is not None)
    _warn(settings, key)

    from dspark.server.app import App
    from dspark.server.lifecycle import ended_by_signals

    app = App(http, settings, key)
    with ended_by_signals() as stop:
        app.start()
        _announce(app, settings, key, no_model=no_model)
        failure = _serve(app, stop, no_model=no_model)
        _LOG.info("ending; a second signal ends at once")
        if not app.stop():
            _leave(failure)
    if failure is not None:
        raise failure
    return 0


def _serve(app: App, stop: Stop, *, no_model: bool) -> Exception | None:
    """Serve until a signal comes, or until the first load fails, which is returned.

    One that a client called off, or came before with another, did not fail: the server goes on for the next.
    """
    from dspark.errors import EngineBusy, LoadCancelled

    failures: list[Exception] = []

    def load() -> None:
        try:
            app.load().wait()
        except LoadCancelled:
            if not stop.asked:
                _LOG.info("no model is served; mlx-dspark load --url %s loads one", app.http.url)
        except EngineBusy as error:
            _LOG.info("%s", error)
        except Exception as error:
            failures.append(error)
            stop.request()
        else:
            _tell_of_model(app)

    if not no_model:
        threading.Thread(target=load, name="dspark-first-load", daemon=True).start()
    stop.wait()
    return failures[0] if failures else None


def _leave(failure: Exception | None) -> None:
    """End without waiting for what cannot be ended: the interpreter would wait, or break under it."""
    _LOG.warning("something is still running and is cut off")
    sys.stdout.flush()
    os._exit(0 if failure is None else 1)


def _warn(settings: Settings, key: str | None) -> None:
    if key is not None and settings.origin("api_key") == "flag":
        _LOG.warning("--api-key can be seen by other users of this machine: prefer --api-key-file")
    if settings.server.allow_unauthenticated_inference and key is not None:
        _LOG.warning("allow_unauthenticated_inference is on: the model can be used without a key")
    if settings.model.trust_remote_code:
        _LOG.warning("--trust-remote-code is on: a checkpoint may run Python of its own, also one loaded later")


def _announce(app: App, settings: Settings, key: str | None, *, no_model: bool) -> None:
    """Lines to copy, for the address that it really has."""
    from dspark.commands.rendering import print_verbatim, stdout_console
    from dspark.integrations import KEY_VARIABLE, Endpoint, curl
    from dspark.server.serving import listed_name

    console = stdout_console()
    url, *others = app.http.urls()
    print_verbatim(console, f"mlx-dspark serves on {url}")
    for other in others:
        print_verbatim(console, f"{'':<{INDENT}}{other}")
    if no_model:
        lines = [("load a model", f"mlx-dspark load --url {url} --model mlx-community/Qwen3-4B-8bit")]
    else:
        request = curl(Endpoint(url, listed_name(settings.model.model)))
        if key is not None:
            request = request.replace(" -d ", f' -H "Authorization: Bearer ${KEY_VARIABLE}" -d ', 1)
        lines = [("try it", request)]
    lines += [
        ("OpenAI", f"export OPENAI_BASE_URL={shlex.quote(f'{url}/v1')}"),
        ("Anthropic", f"export ANTHROPIC_BASE_URL={shlex.quote(url)}"),
        ("Claude Code", f"mlx-dspark launch claude --url {url}"),
        ("Codex", f"mlx-dspark launch codex --url {url}"),
    ]
    for name, line in lines:
        print_verbatim(console, f"{name:<{INDENT}}{line}")
    sys.stdout.flush()


def _tell_of_model(app: App) -> None:
    serving = app.loads.serving
    if serving is None:
        return
    for warning in serving.warnings:
        _LOG.warning("%s", warning)
    _LOG.info("%s is ready: %s", serving.name, serving.speculation.describe())
