"""From path to handler, and the shape of errors."""

import json

import pytest
from wires import KEY, Probe, asked

from dspark.errors import DSparkError, EngineBusy, NotLoaded, PromptError, StorageError, ValidationFailed
from dspark.server.auth import Guard
from dspark.server.exchange import Response
from dspark.server.origins import Browsers
from dspark.server.routing import Route, Router


def router(routes=None, **guard):
    return Router(Probe().routes() if routes is None else routes, Guard(browsers=Browsers(loopback=True), **guard))


def told(answer):
    return json.loads(answer.body)


def ask(method, path, table=None, **headers):
    from dspark.server.routing import normalised

    return (table or router()).handle(asked(method, normalised(path), **headers))


@pytest.mark.parametrize("path", ["/models", "/v1/models", "/models/", "/v1/models/", "/v1/models//"])
def test_every_spelling_of_a_path_is_the_same_route(path):
    assert ask("GET", path).status == 200


@pytest.mark.parametrize(
    "path", ["/v1x/models", "/v1models", "/v2/models", "//models", "/MODELS", "/v1/v1/models", "/"]
)
def test_other_paths_are_not(path):
    answer = ask("GET", path)
    assert (answer.status, told(answer)["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/models/org/name-4bit", "org/name-4bit"),
        ("/models/org%2Fname", "org/name"),
        ("/models/a%0Ab", "a\nb"),
        ("/models/.*", ".*"),
    ],
)
def test_parameters_may_hold_slashes_where_they_may(path, expected):
    """E16"""
    table = router(
        [Route("GET", "/v1/models/{id:path}", lambda request: Response.json(dict(request.params)), "status")]
    )
    assert told(ask("GET", path, table)) == {"id": expected}


def test_a_plain_parameter_is_one_segment():
    table = router([Route("GET", "/load/{id}/log", lambda request: Response.json(dict(request.params)), "status")])
    assert told(ask("GET", "/load/a.b/log", table)) == {"id": "a.b"}
    assert ask("GET", "/load/a/b/log", table).status == 404


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/chat/completions", "POST, OPTIONS"),
        ("POST", "/models", "GET, HEAD, OPTIONS"),
        ("HEAD", "/messages", "POST, OPTIONS"),
        ("BREW", "/health", "GET, HEAD, OPTIONS"),
        ("get", "/health", "GET, HEAD, OPTIONS"),
    ],
)
def test_another_method_is_told_which_ones_there_are(method, path, allow):
    answer = ask(method, path)
    assert answer.status == 405
    assert dict(answer.headers)["Allow"] == allow
    assert told(answer)["error"]["type"] == "invalid_request_error"


def test_options_lists_the_methods():
    answer = ask("OPTIONS", "/v1/models")
    assert (answer.status, dict(answer.headers)["Allow"], answer.body) == (204, "GET, HEAD, OPTIONS", b"")
    assert ask("OPTIONS", "*").status == 204
    assert ask("OPTIONS", "/nowhere").status == 404


class Guarded(DSparkError):
    status = 507
    code = "insufficient_memory"


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (PromptError("x"), 400, "invalid_request_error", None, None),
        (ValidationFailed("x", "top_p"), 422, "invalid_request_error", "top_p", None),
        (EngineBusy("x"), 409, "conflict_error", None, None),
        (NotLoaded("x"), 503, "overloaded_error", None, None),
        (StorageError("x"), 507, "api_error", None, None),
        (Guarded("x"), 507, "api_error", None, "insufficient_memory"),
        (DSparkError("x"), 500, "api_error", None, None),
    ],
)
def test_an_error_of_a_handler_becomes_its_envelope(error, status, kind, param, code):
    def fail(request):
        raise error

    table = router([Route("GET", "/a", fail, "status"), Route("GET", "/messages/b", fail, "status")])
    described = {"message": "x", "type": kind, "param": param, "code": code}
    answer = ask("GET", "/a", table)
    assert (answer.status, told(answer)) == (status, {"error": described})
    assert dict(answer.headers).get("Retry-After") == ("1" if status == 503 else None)
    anthropic = told(ask("GET", "/v1/messages/b", table))
    assert anthropic == {"type": "error", "error": described, "request_id": "req_test"}


def test_refusals_before_the_handler_have_the_dialects_envelope_too():
    table = router(key=KEY)
    assert told(ask("POST", "/v1/messages", table))["request_id"] == "req_test"
    assert told(ask("GET", "/v1/messages/count_tokens/x", table))["type"] == "error"
    assert set(told(ask("POST", "/v1/messagesx", table))) == {"error"}


def test_a_message_of_several_lines_is_told_on_one():
    def fail(request):
        raise PromptError("one\r\n  two")

    assert told(ask("GET", "/a", router([Route("GET", "/a", fail, "status")])))["error"]["message"] == "one two"


def test_numbers_that_json_does_not_have_are_a_defect_and_not_an_answer():
    table = router([Route("GET", "/a", lambda request: Response.json({"x": float("nan")}), "status")])
    assert ask("GET", "/a", table).status == 500
