"""Errors as clients read them: the OpenAI shape everywhere, inside the Anthropic envelope on `/messages*`."""

from typing import Any

from dspark.errors import DSparkError, MethodNotAllowed
from dspark.server.exchange import Response

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_object(error: Exception) -> dict[str, Any]:
    """`message`, `type`, `param` and `code` of an error. Of a defect it says no more than that there was one."""
    if not isinstance(error, DSparkError):
        return {"message": "internal error", "type": "api_error", "param": None, "code": None}
    fallback = "api_error" if error.status >= 500 else "invalid_request_error"
    message = " ".join(str(error).split())
    return {
        "message": message,
        "type": _TYPES.get(error.status, fallback),
        "param": error.param,
        "code": error.code,
    }


def error_body(error: Exception, path: str, request_id: str) -> dict[str, Any]:
    """The whole body of an error response to a request for `path`."""
    described = error_object(error)
    if not isinstance(error, DSparkError):
        described["message"] = f"internal error: the server's log tells it under {request_id}"
    if path == "/messages" or path.startswith("/messages/"):
        return {"type": "error", "error": described, "request_id": request_id}
    return {"error": described}


def error_response(error: Exception, path: str, request_id: str) -> Response:
    """What a request for `path` gets that ended with `error`."""
    status = error.status if isinstance(error, DSparkError) else 500
    headers: list[tuple[str, str]] = []
    retry_after_s = error.retry_after_s if isinstance(error, DSparkError) else None
    if retry_after_s is None and status == 503:
        retry_after_s = 1
    if retry_after_s is not None:
        headers.append(("Retry-After", str(retry_after_s)))
    if status == 401:
        headers.append(("WWW-Authenticate", "Bearer"))
    if isinstance(error, MethodNotAllowed):
        headers.append(("Allow", error.allow))
    return Response.json(error_body(error, path, request_id), status, tuple(headers))
