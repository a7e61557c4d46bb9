"""The control plane over HTTP: who may, what is shown, races."""

import pytest
from live import Live, events, served

KEY = "main-key"


@pytest.fixture(scope="module")
def locked(pair, own_home):
    """A server with a key, and a sub-key beside the main one."""
    with served(model=pair[0], drafter=pair[1], mode="dspark", max_draft=3, key=KEY) as running:
        from dspark.server.keys import SubKeys

        running.sub = SubKeys.at_home().create("guest")
        yield running


def with_key(live, key):
    other = Live(live.app, key)
    return other.http


@pytest.mark.parametrize("header", ["", "Bearer ", "bearer ", "x-api-key"])
def test_each_route_and_method_wants_a_key_but_health(locked, header):
    """O1: every route of the table with every method."""
    wrong = {"x-api-key": "wrong"} if header == "x-api-key" else {"Authorization": f"{header}wrong"} if header else {}
    with with_key(locked, None) as http:
        for path, methods in locked.get("/openapi.json")["paths"].items():
            for method in ("GET", "POST", "PUT", "DELETE", "HEAD"):
                response = http.request(method, path.replace("{id}", "x"), headers=wrong)
                if path == "/health" and method == "GET":
                    assert response.status_code == 200
                else:
                    assert response.status_code == 401, (method, path, methods)
        assert http.post("/v1/chat/completions", json={}).json()["error"]["type"] == "authentication_error"


def test_a_sub_key_generates_and_looks_but_does_not_administer(locked):
    with with_key(locked, locked.sub) as http:
        assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
        assert http.get("/metrics").status_code == 200
        for method, path in (("GET", "/admin/status"), ("POST", "/admin/unload"), ("GET", "/admin/integrations")):
            assert http.request(method, path).status_code == 401


def test_a_full_share_of_the_queue_is_429_for_its_key_alone(locked):
    worker = locked.app.worker
    before, worker._limit_of_a_key = worker._limit_of_a_key, 0
    try:
        with with_key(locked, locked.sub) as http:
            refused = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert refused.status_code == 429 and refused.json()["error"]["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) > 0
        locked.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    finally:
        worker._limit_of_a_key = before


def test_settings_for_clients_are_of_this_very_server(locked):
    """P3: address, model and key as they are."""
    told = locked.get("/admin/integrations")
    assert told["url"] == locked.url and set(told["clients"]) == {"claude", "codex", "opencode", "pi"}
    assert told["openai"] == {"OPENAI_BASE_URL": f"{locked.url}/v1", "OPENAI_API_KEY": KEY, "model": "tiny-target"}
    claude = told["clients"]["claude"]["environment"]
    assert (claude["ANTHROPIC_BASE_URL"], claude["ANTHROPIC_AUTH_TOKEN"]) == (locked.url, KEY)
    codex = " ".join(told["clients"]["codex"]["command"])
    assert 'wire_api="responses"' in codex and f'base_url="{locked.url}/v1"' in codex, "G9"


def test_what_can_be_loaded_here(locked, pair, monkeypatch, tmp_path):
    """L1: found by the one way of looking; a drafter is none to chat with."""
    import shutil

    shutil.copytree(pair[0], tmp_path / "org" / "mine")
    shutil.copytree(pair[1], tmp_path / "org" / "head")
    monkeypatch.setenv("MLX_DSPARK_MODEL_DIRS", str(tmp_path))
    told = locked.get("/admin/models")
    assert {"id", "fit", "published_speedup", "measured_by"} <= set(told["pairs"][0])
    (shelf,) = [one for one in told["on_disk"] if one["shelf"] == "extra"]
    assert [one["name"] for one in shelf["models"]] == ["mine"]
    assert [one["name"] for one in shelf["drafters"]] == ["head"]
    assert shelf["used_bytes"] == sum(one["bytes"] for one in (*shelf["models"], *shelf["drafters"])) > 0
    assert told["bandwidth"]["reference_gb_s"] == 273 and told["bandwidth"]["measured_gb_s"] is None


def raced(live, **body):
    with live.http.stream("POST", "/admin/race", json=body) as response:
        assert response.status_code == 200, response.read()
        return [data for _, data in events(response)]


def test_a_race_ends_with_a_verdict_on_the_ids(live):
    told = raced(live, prompt="Hello", arms=[{"mode": "dspark", "cap": 2}, {"mode": "lookup"}], max_tokens=20)
    assert [one["type"] for one in told if one["type"] != "token"] == [
        *("start", "arm_start", "arm_done", "arm_start", "arm_done", "arm_start", "arm_done", "verdict", "done")
    ]
    start, verdict = told[0], told[-2]
    assert [arm["mode"] for arm in start["arms"]] == ["baseline", "dspark", "lookup"]
    assert verdict["outcome"] == "identical" and [arm["outcome"] for arm in verdict["arms"]] == ["identical"] * 2
    tokens = [one for one in told if one["type"] == "token"]
    texts = ["".join(one.get("text", "") for one in tokens if one["arm"] == arm) for arm in range(3)]
    assert len(set(texts)) == 1 and texts[0] == told[[one["type"] for one in told].index("arm_done")]["text"]


def test_a_race_names_the_first_difference_with_both_tokens_and_the_gap(live, monkeypatch):
    """P9."""
    from dspark.decoding.events import Finished
    from dspark.engine import Engine

    generate = Engine.generate

    def lying(engine, request):
        for event in generate(engine, request):
            if isinstance(event, Finished) and request.speculation.mode == "lookup":
                from dataclasses import replace

                event = replace(event, tokens=(*event.tokens[:3], event.tokens[3] ^ 1, *event.tokens[4:]))
            yield event

    monkeypatch.setattr(Engine, "generate", lying)
    told = raced(live, prompt="Hello", arms=[{"mode": "lookup"}], max_tokens=8)
    (arm,) = told[-2]["arms"]
    assert told[-2]["outcome"] == "diverged" and (arm["position"], arm["tie"]) == (3, False)
    assert arm["expected"]["id"] != arm["found"]["id"] and arm["gap"] is not None and arm["threshold"] > 0


def test_an_arm_that_fails_is_marked_and_the_others_go_on(live, monkeypatch):
    """P9."""
    from dspark.engine import Engine
    from dspark.errors import VerifierError

    generate = Engine.generate

    def failing(engine, request):
        if request.speculation.mode == "lookup":
            raise VerifierError("the logits are not finite")
        return generate(engine, request)

    monkeypatch.setattr(Engine, "generate", failing)
    told = raced(live, prompt="Hello", arms=[{"mode": "lookup"}, {"mode": "dspark"}], max_tokens=8)
    done = [one for one in told if one["type"] == "arm_done"]
    assert done[1]["error"] == "the logits are not finite" and "error" not in done[2]
    assert [arm["outcome"] for arm in told[-2]["arms"]] == [None, "identical"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": "x", "arms": []}, 422),
        ({"prompt": "x", "arms": [{"mode": "dflash"}]}, 422),
        ({"prompt": "x", "arms": [{"mode": "dspark", "cap": 99}]}, 422),
        ({"prompt": "", "arms": [{"mode": "lookup"}]}, 422),
        ({"prompt": "x", "arms": [{"mode": "lookup"}], "max_tokens": 0}, 422),
    ],
)
def test_a_race_that_cannot_be_run_is_refused_by_its_status(live, body, status):
    assert live.http.post("/admin/race", json=body).status_code == status
