"""Every status of the contract, as the exception that each SDK makes of it."""

import json

import pytest

from dspark import errors
from dspark.server.auth import Guard
from dspark.server.exchange import HttpRequest
from dspark.server.origins import Browsers
from dspark.server.routing import Route, Router
from dspark.server.transport import bind

openai = pytest.importorskip("openai", reason="the openai SDK is not installed (pip install -e '.[test]')")
anthropic = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed (pip install -e '.[test]')")

# What is raised; its status and type in the contract; the exceptions of openai and of anthropic.
TOLD = {
    "too long": (
        errors.PromptError("prompt is too long: 9 tokens > 8 maximum"),
        (400, "invalid_request_error", "BadRequestError", "BadRequestError"),
    ),
    "no key": (
        errors.Unauthenticated("API key required"),
        (401, "authentication_error", "AuthenticationError", "AuthenticationError"),
    ),
    "foreign": (
        errors.Forbidden("elsewhere"),
        (403, "permission_error", "PermissionDeniedError", "PermissionDeniedError"),
    ),
    "unknown": (errors.ModelNotFound("no such model"), (404, "not_found_error", "NotFoundError", "NotFoundError")),
    "slow": (errors.TooSlow("late"), (408, "invalid_request_error", "APIStatusError", "RequestTimeoutError")),
    "busy": (errors.EngineBusy("a load runs"), (409, "conflict_error", "ConflictError", "ConflictError")),
    "large": (errors.BodyTooLarge("large"), (413, "request_too_large", "APIStatusError", "ContentTooLargeError")),
    "field": (
        errors.ValidationFailed("body -> max_tokens: Input should be greater than 0", "max_tokens"),
        (422, "invalid_request_error", "UnprocessableEntityError", "UnprocessableEntityError"),
    ),
    "locked out": (errors.LockedOut("wait", 30), (429, "rate_limit_error", "RateLimitError", "RateLimitError")),
    "defect": (RuntimeError("secret"), (500, "api_error", "InternalServerError", "InternalServerError")),
    "no model": (
        errors.NotLoaded("no model is loaded"),
        (503, "overloaded_error", "InternalServerError", "ServiceUnavailableError"),
    ),
    "no room": (errors.InsufficientMemory("9 GB"), (507, "api_error", "InternalServerError", "InternalServerError")),
}


def fail(request: HttpRequest):
    raise TOLD[json.loads(request.body)["model"]][0]


@pytest.fixture(scope="module")
def failing():
    """A server whose generation routes raise what the request's model says."""
    server = bind("127.0.0.1", 0, protected=False)
    routes = [Route("POST", path, fail, "inference") for path in ("/chat/completions", "/messages")]
    browsers = Browsers(loopback=True, cors_origins=(), server_aliases=())
    server.start(Router(routes, Guard(browsers=browsers)))
    yield server.url
    server.stop(finish_s=0.0)


@pytest.mark.parametrize("name", TOLD)
def test_what_openai_makes_of_it(failing, name):
    error, (status, kind, expected, _) = TOLD[name]
    with (
        openai.OpenAI(base_url=f"{failing}/v1", api_key="not-needed", max_retries=0) as client,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        client.chat.completions.create(model=name, messages=[])
    raised = caught.value
    assert (type(raised).__name__, raised.status_code, raised.type) == (expected, status, kind)
    assert (raised.param, raised.code) == (getattr(error, "param", None), getattr(error, "code", None))
    said = str(error) if isinstance(error, errors.DSparkError) else "internal error: the server's log tells it under"
    assert said in raised.message and "secret" not in raised.message
    assert raised.request_id == raised.response.headers["x-request-id"]
    assert ("retry-after" in raised.response.headers) == (status in (429, 503))


@pytest.mark.parametrize("name", TOLD)
def test_what_anthropic_makes_of_it(failing, name):
    status, kind, _, expected = TOLD[name][1]
    with (
        anthropic.Anthropic(base_url=failing, api_key="not-needed", max_retries=0) as client,
        pytest.raises(anthropic.APIStatusError) as caught,
    ):
        client.messages.create(model=name, messages=[], max_tokens=1)
    raised = caught.value
    assert (type(raised).__name__, raised.status_code, raised.type) == (expected, status, kind)
    assert raised.request_id == raised.body["request_id"] and "secret" not in raised.message
