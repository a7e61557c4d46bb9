"""Who may do what."""

from dataclasses import replace

import pytest
from wires import KEY, Probe, asked

from dspark.server.auth import Guard
from dspark.server.keys import SubKeys
from dspark.server.lockout import FIRST_SECONDS, LATER_SECONDS, RUN_LENGTH, Lockout
from dspark.server.origins import Browsers, is_loopback
from dspark.server.routing import Router

LAN = "192.168.1.7"
PROBE = Probe()
ROUTES = [replace(route, handler=PROBE.echo) for route in PROBE.routes()]
EVERY = [
    (method, route.path) for route in ROUTES for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
]
ELSEWHERE = [("GET", "/nowhere"), ("POST", "/"), ("OPTIONS", "*"), ("OPTIONS", "/nowhere"), ("BREW", "/health")]


def table(*, loopback=True, cors_origins=(), server_aliases=(), **guard):
    browsers = Browsers(loopback=loopback, cors_origins=cors_origins, server_aliases=server_aliases)
    return Router(ROUTES, Guard(browsers=browsers, **guard))


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(("method", "path"), [*EVERY, *ELSEWHERE])
def test_every_route_and_method_wants_the_key(method, path):
    """O1"""
    router = table(key=KEY)
    path = path.replace("{id:path}", "some/id")
    if (method, path) == ("GET", "/health"):
        assert router.handle(asked(method, path)).status == 200
        return
    missing = router.handle(asked(method, path))
    wrong = router.handle(asked(method, path, x_api_key="wrong-key"))
    assert (missing.status, wrong.status) == (401, 401)
    assert b"API key required" in missing.body
    assert b"Invalid API key" in wrong.body
    right = router.handle(asked(method, path, x_api_key=KEY, body=b"{}"))
    assert getattr(right, "status", 200) != 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"bearer {KEY}"}, 200),
        ({"Authorization": f"BEARER   {KEY}"}, 200),
        ({"x_api_key": KEY}, 200),
        ({"X_API_KEY": KEY}, 200),
        ({"Authorization": "Bearer something-else", "x_api_key": KEY}, 200),
        ({"Authorization": KEY}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": f"Bearer {KEY}\n"}, 401),
        ({"x_api_key": f"{KEY}\n"}, 401),
        ({"x_api_key": KEY.upper()}, 401),
        ({"x_api_key": KEY[:-1]}, 401),
        ({"x_api_key": f"{KEY}x"}, 401),
        ({"x_api_key": "klíč"}, 401),
        ({"x_api_key": ""}, 401),
        ({"Cookie": f"mlx_dspark_session={KEY}"}, 401),
    ],
)
def test_both_headers_carry_the_key(headers, status):
    """O1"""
    assert table(key=KEY).handle(asked(**headers)).status == status


def test_without_a_key_any_key_will_do():
    assert table().handle(asked("POST", "/admin/load", body=b"{}", x_api_key="dummy")).status == 200


def test_preflight_is_answered_without_a_key_and_says_nothing_of_the_route():
    """O1"""
    headers = {"Origin": "http://localhost:3000", "Access_Control_Request_Method": "POST"}
    router = table(key=KEY)
    answers = [router.handle(asked("OPTIONS", path, **headers)) for path in ("/admin/load", "/nowhere")]
    assert [answer.status for answer in answers] == [204, 204]
    assert answers[0].headers == answers[1].headers
    allowed = dict(answers[0].headers)
    assert allowed["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert {"Authorization", "x-api-key", "anthropic-version"} <= set(
        allowed["Access-Control-Allow-Headers"].split(", ")
    )
    assert "Access-Control-Allow-Credentials" not in allowed


def test_preflight_allows_what_sdks_in_browsers_add():
    headers = {
        "Origin": "http://localhost:3000",
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "x-stainless-os, authorization, bad\r\nname",
    }
    allowed = dict(table().handle(asked("OPTIONS", "/messages", **headers)).headers)["Access-Control-Allow-Headers"]
    assert "x-stainless-os" in allowed
    assert "\r" not in allowed
    assert allowed.lower().count("authorization") == 1


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080", "https://ok.example"]
)
def test_pages_of_this_machine_and_those_listed_may_read(origin):
    answer = table(cors_origins=["https://OK.example/"]).handle(asked(Origin=origin))
    assert answer.status == 200
    assert dict(answer.headers)["Access-Control-Allow-Origin"] == origin
    refused = table(cors_origins=["https://ok.example"], key=KEY).handle(asked(Origin=origin))
    assert dict(refused.headers)["Access-Control-Allow-Origin"] == origin


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "http://localhost.evil.example",
        "http://evil.example:80/localhost",
        "http://127.0.0.1.evil.example",
        "http://localhost@evil.example",
        "http://evil.example#localhost",
        "file://localhost",
        "http://[::1",
        "http://ok.example",
        "https://ok.example.evil.example",
        "http://localhost, https://evil.example",
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("POST", "/messages"), ("OPTIONS", "/messages")])
def test_foreign_pages_are_refused_on_every_route(origin, method, path):
    router = table(cors_origins=["https://ok.example"], key=KEY)
    answer = router.handle(asked(method, path, Origin=origin, x_api_key=KEY, Access_Control_Request_Method="POST"))
    assert answer.status == 403
    assert b"permission_error" in answer.body
    assert "Access-Control-Allow-Origin" not in dict(answer.headers)


def test_all_pages_may_read_where_that_is_set_but_never_with_credentials():
    allowed = dict(table(cors_origins=["*"]).handle(asked(Origin="https://any.example")).headers)
    assert allowed["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in allowed


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:8080", 200),
        ("127.0.0.1:8080", 200),
        ("127.8.9.1", 200),
        ("[::1]:8080", 200),
        ("[::ffff:127.0.0.1]", 200),
        ("box.local:8080", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("192.168.1.7", 403),
        ("0.0.0.0", 403),
        ("", 403),
        ("[2001:db8::1]", 403),
    ],
)
def test_a_foreign_host_name_is_refused_where_only_this_machine_is_served(host, status):
    """DNS rebinding"""
    answer = table(server_aliases=["Box.local"]).handle(asked(Host=host))
    assert answer.status == status
    if status == 403:
        assert b"server_aliases" in answer.body
    assert table(loopback=False, key=KEY).handle(asked(Host=host, x_api_key=KEY)).status == 200


@pytest.mark.parametrize("address", ["127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1", "localhost", "localhost."])
def test_loopback_names(address):
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "::", "128.0.0.1", "::ffff:8.8.8.8", "fe80::1%lo0", "localhost.x", "", "1"]
)
def test_names_that_are_not_loopback(address):
    assert not is_loopback(address)


def test_sub_keys_open_everything_but_administration(tmp_path):
    sub_keys = SubKeys(tmp_path / "keys.json")
    key = sub_keys.create("laptop")
    router = table(key=KEY, sub_keys=sub_keys)
    for method, path in (("POST", "/chat/completions"), ("GET", "/models")):
        answer = router.handle(asked(method, path, x_api_key=key))
        assert answer.status == 200
        assert b'"role":"sub"' in answer.body
    for method, path in (("POST", "/admin/load"), ("GET", "/admin/load"), ("OPTIONS", "/admin/load")):
        answer = router.handle(asked(method, path, x_api_key=key))
        assert (answer.status, b"Invalid API key" in answer.body) == (401, True)
    assert b'"role":"main"' in router.handle(asked(x_api_key=KEY)).body
    sub_keys.revoke("laptop")
    assert router.handle(asked(x_api_key=key)).status == 401


def test_open_inference_opens_generation_alone():
    router = table(key=KEY, open_inference=True)
    assert router.handle(asked("POST", "/chat/completions")).status == 200
    assert router.handle(asked("POST", "/messages", x_api_key="dummy")).status == 200
    for method, path in (("GET", "/chat/completions"), ("GET", "/models"), ("POST", "/admin/load")):
        assert router.handle(asked(method, path)).status == 401


def test_eight_wrong_keys_in_a_row_lock_an_address_out():
    clock = Clock()
    router = table(key=KEY, loopback=False, lockout=Lockout(clock))

    def ask(key, client=LAN):
        return router.handle(asked(client=client, x_api_key=key))

    def run():
        assert [ask("wrong").status for _ in range(RUN_LENGTH)] == [401] * RUN_LENGTH

    run()
    locked = ask(KEY)
    assert (locked.status, dict(locked.headers)["Retry-After"]) == (429, "30")
    assert b"rate_limit_error" in locked.body
    assert router.handle(asked("GET", "/health", client=LAN)).status == 200
    assert ask(KEY, "192.168.1.8").status == 200
    clock.now += FIRST_SECONDS
    run()
    assert dict(ask("wrong").headers)["Retry-After"] == "300"
    clock.now += LATER_SECONDS
    run()
    assert dict(ask(KEY).headers)["Retry-After"] == "300"
    clock.now += LATER_SECONDS
    assert ask(KEY).status == 200
    run()
    assert dict(ask(KEY).headers)["Retry-After"] == "30"


def test_a_right_key_clears_the_count():
    router = table(key=KEY, loopback=False)
    for key in (["wrong"] * (RUN_LENGTH - 1) + [KEY]) * 3:
        router.handle(asked(client=LAN, x_api_key=key))
    assert router.handle(asked(client=LAN, x_api_key="wrong")).status == 401


def test_missing_keys_and_this_machine_are_not_counted():
    router = table(key=KEY, loopback=False)
    for _ in range(RUN_LENGTH * 2):
        router.handle(asked(client=LAN))
        router.handle(asked(client="127.0.0.1", x_api_key="wrong"))
    assert router.handle(asked(client=LAN, x_api_key=KEY)).status == 200
    assert router.handle(asked(client="127.0.0.1", x_api_key=KEY)).status == 200


def test_a_lock_out_names_no_key(caplog):
    router = table(key=KEY, loopback=False)
    for _ in range(RUN_LENGTH):
        router.handle(asked(client=LAN, x_api_key="guessed-key"))
    assert LAN in caplog.text
    assert "guessed" not in caplog.text


def test_a_session_opens_everything_to_our_own_pages():
    guard = Guard(browsers=Browsers(loopback=True), key=KEY)
    router = Router(ROUTES, guard)
    cookie = guard.sessions.cookie().partition(";")[0]
    headers = {"Cookie": f"other=1; {cookie}", "Host": "localhost:8080"}
    for origin in ({}, {"Origin": "http://localhost:8080"}):
        answer = router.handle(asked("POST", "/admin/load", body=b"{}", **headers, **origin))
        assert (answer.status, b'"role":"main"' in answer.body) == (200, True)
    foreign = router.handle(asked("POST", "/admin/load", Origin="http://localhost:3000", **headers))
    assert foreign.status == 401
