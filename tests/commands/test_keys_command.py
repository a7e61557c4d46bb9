"""Named keys, made and revoked while a server runs."""

import httpx
import pytest

from dspark.commands.app import run
from dspark.server.app import App
from dspark.server.transport import bind
from dspark.settings import resolve

KEY = "main-key"


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path))


@pytest.fixture
def server():
    app = App(bind("127.0.0.1", 0, protected=True), resolve({}, environment={}), KEY, measuring=False)
    app.start()
    with httpx.Client(base_url=app.http.url, trust_env=False) as http:
        yield http
    app.stop(finish_s=0.0)


def test_a_running_server_takes_a_new_key_and_forgets_a_revoked_one(server, capsys):
    """Contract section 1, roles: generation and status, never the control plane."""
    assert run(["keys", "create", "laptop"]) == 0
    told = capsys.readouterr()
    key = told.out.strip()
    assert len(told.out.splitlines()) == 1 and "not shown again" in told.err
    headers = {"x-api-key": key}

    def status(method, path):
        return server.request(method, path, headers=headers, json={} if method == "POST" else None).status_code

    assert [status("GET", path) for path in ("/v1/models", "/metrics", "/admin/status")] == [200, 200, 401]
    assert (status("POST", "/v1/messages/count_tokens"), status("POST", "/admin/load")) == (422, 401)
    assert run(["keys", "revoke", "laptop"]) == 0
    assert status("GET", "/v1/models") == 401


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["create"], "give the name"),
        (["revoke"], "give the name"),
        (["list", "laptop"], "takes no name"),
        (["create", "a b"], "the name of a key"),
        (["create", "taken"], "there is a key called taken"),
        (["revoke", "nobody"], "there is no key called nobody"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(arguments, told, capsys):
    assert run(["keys", "create", "taken"]) == 0
    assert run(["keys", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_names_alone_are_listed(capsys):
    for name in ("one", "two"):
        run(["keys", "create", name])
    capsys.readouterr()
    assert run(["keys"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
