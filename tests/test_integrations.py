"""How clients are pointed at a server; that each is understood is held by tests/commands/test_launch.py."""

import json
import os
import shlex
import subprocess
import tomllib

import pytest

from dspark.integrations import CLIENTS, Endpoint, curl, openai_settings

SERVER = Endpoint("http://[::1]:8123", "org/it's", context_window=4096, max_output_tokens=1024, key="s3cret")


@pytest.mark.parametrize("name", CLIENTS)
def test_the_line_is_one_that_a_shell_reads_back(name):
    one = CLIENTS[name](SERVER)
    words = shlex.split(one.line)
    environment = dict(word.split("=", 1) for word in words[: len(one.environment)])
    assert environment == dict(one.environment) and words[len(environment) :] == [one.command, *one.arguments]


@pytest.mark.parametrize("name", CLIENTS)
def test_address_model_and_sizes_are_the_servers(name):
    told = json.dumps(CLIENTS[name](SERVER).as_dict())
    assert "http://[::1]:8123" in told and "org/it's" in told and "4096" in told


def test_answers_leave_room_in_a_small_window():
    small = Endpoint("http://127.0.0.1:8080", "m", context_window=8192, max_output_tokens=8191)
    assert CLIENTS["claude"](small).environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "2048"
    assert json.loads(CLIENTS["pi"](small).file.content)["providers"]["mlx-dspark"]["models"][0]["maxTokens"] == 2048


def test_files_are_of_the_kind_that_their_clients_read():
    assert (
        tomllib.loads(CLIENTS["codex"](SERVER).file.content)["model_providers"]["mlx-dspark"]["wire_api"] == "responses"
    )
    for name in ("claude", "opencode", "pi"):
        assert isinstance(json.loads(CLIENTS[name](SERVER).file.content), dict)


def test_pi_asks_for_the_key_by_a_command_that_a_shell_runs():
    command = json.loads(CLIENTS["pi"](SERVER).file.content)["providers"]["mlx-dspark"]["apiKey"].removeprefix("!")
    for variables, key in (({"MLX_DSPARK_API_KEY": "s3cret"}, "s3cret"), ({}, "not-needed")):
        told = subprocess.run(command, shell=True, env={"PATH": os.environ["PATH"], **variables}, capture_output=True)
        assert told.stdout.decode().strip() == key


def test_where_no_key_is_needed_clients_get_a_word_for_one():
    free = Endpoint("http://127.0.0.1:8080", "m")
    assert openai_settings(free)["OPENAI_API_KEY"] == "not-needed"
    assert "Authorization" not in curl(free) and "Bearer s3cret" in curl(SERVER)
