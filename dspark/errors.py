"""Every error the project raises on purpose.

DSparkError
├── UsageError               a flag, an arm or a file of the caller's that cannot be meant
├── ModelNotFound            no such model on disk, and none could be fetched
├── NetworkError             a download failed for want of a network
├── StorageError             a folder cannot be read or written, or the disk is full
├── CheckpointError          files that are not a loadable model
│   ├── RemoteCodeRefused    the checkpoint wants Python of its own to be run
│   └── DrafterFormatError   a drafter packaging that is unknown, incomplete or contradictory
├── ProfileError             a calibration profile that cannot be used
├── PairingError             drafter and target do not belong together
├── PromptError              a prompt that is empty, or longer than the context window
├── ConstraintError          a schema, a tool choice or a limit that cannot be enforced
│   └── ExtraMissing         the optional package that would enforce it is not installed
├── InsufficientMemory       what was asked for would not fit into memory
├── NotLoaded                the engine holds no model
├── EngineBusy               another generation or load is running
├── EngineStopped            the thread that decodes is gone, or ends
├── LoadCancelled            a load was called off
├── RequestError             an HTTP request that is refused
│   ├── BadRequest           it cannot be read, or asks for what does not go together
│   │   └── ValidationFailed a field of it holds what it may not
│   ├── Unauthenticated      its key is missing or wrong
│   ├── LockedOut            too many wrong keys came from its address
│   ├── Forbidden            it came from a foreign web page, or under a foreign host name
│   ├── RouteNotFound        nothing answers at its path
│   ├── MethodNotAllowed     something does, to another method
│   ├── TooSlow              it did not arrive in time
│   ├── LengthRequired       it has no body where one is needed
│   ├── BodyTooLarge         its body passes the limit
│   ├── HeadersTooLarge      its headers pass the limit
│   ├── TooManyWaiting       its key has too many requests in the queue
│   └── Overloaded           there is no room for it now
└── DecodingError            the decoder caught itself going wrong, and stopped
    ├── VerifierError        logits that are not finite, or ids outside the vocabulary
    ├── RollbackError        a cache that did not give back what was asked of it
    └── ConstraintDeadEnd    a constraint that leaves no token to choose

A message is one line that says what happened and what to do next. The command line prints it and exits with
`exit_code`; the server answers with `status`, names the field `param` and the `code` where there are any, and tells
the client to come back after `retry_after_s`.
"""

from typing import ClassVar


class DSparkError(Exception):
    """Base of all errors meant for the user."""

    exit_code: ClassVar[int] = 1
    status: ClassVar[int] = 500
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None


class UsageError(DSparkError):
    """The caller asked for something that does not exist or makes no sense."""

    exit_code = 2
    status = 422


class ModelNotFound(DSparkError):
    """The model is on none of the searched shelves."""

    status = 404


class NetworkError(DSparkError):
    """A download could not be made."""

    status = 503


class StorageError(DSparkError):
    """A folder or disk refused."""

    status = 507


class CheckpointError(DSparkError):
    """The files do not make a loadable model."""

    status = 400


class RemoteCodeRefused(CheckpointError):
    """The checkpoint would import Python of its own."""


class DrafterFormatError(CheckpointError):
    """The drafter's packaging is unknown, incomplete or contradicts itself."""


class ProfileError(DSparkError):
    """The profile is broken, of the future, or none."""

    status = 400


class PairingError(DSparkError):
    """Drafter and target do not fit each other."""

    status = 400


class PromptError(DSparkError):
    """The prompt cannot be decoded from."""

    status = 400


class ConstraintError(DSparkError):
    """What the answer should consist of cannot be enforced."""

    status = 400


class ExtraMissing(ConstraintError):
    """An optional dependency is not installed."""


class InsufficientMemory(DSparkError):
    """The memory guard refuses. The message names what is needed, what binds and what to do."""

    status = 507
    code = "insufficient_memory"


class NotLoaded(DSparkError):
    """No model is loaded."""

    status = 503


class EngineBusy(DSparkError):
    """One generation, and one load, at a time."""

    status = 409


class EngineStopped(DSparkError):
    """Nothing decodes any more."""

    status = 503


class LoadCancelled(DSparkError):
    """Somebody called the load off."""

    status = 409


class RequestError(DSparkError):
    """The request is refused. `param` names the field at fault."""

    status = 400

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class BadRequest(RequestError):
    """The request is no HTTP or no JSON, or asks for an impossible combination."""


class ValidationFailed(BadRequest):
    """A field fails validation."""

    status = 422


class Unauthenticated(RequestError):
    """No key, or a wrong one."""

    status = 401


class LockedOut(RequestError):
    """The address showed too many wrong keys."""

    status = 429

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Forbidden(RequestError):
    """A foreign Origin or Host."""

    status = 403


class RouteNotFound(RequestError):
    """No route has this path."""

    status = 404


class MethodNotAllowed(RequestError):
    """The path has routes, none for this method."""

    status = 405

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class TooSlow(RequestError):
    """Headers or body did not arrive in time."""

    status = 408


class LengthRequired(RequestError):
    """The route reads a body and the request has none."""

    status = 411


class BodyTooLarge(RequestError):
    """The body passes the limit."""

    status = 413


class HeadersTooLarge(RequestError):
    """The header block passes the limit."""

    status = 431


class TooManyWaiting(RequestError):
    """The key's share of the queue is used up."""

    status = 429
    retry_after_s = 1


class Overloaded(RequestError):
    """No room for one more."""

    status = 503
    retry_after_s = 1


class DecodingError(DSparkError):
    """The decoder found its own state inconsistent."""


class VerifierError(DecodingError):
    """The target's output is not usable."""


class RollbackError(DecodingError):
    """A cache did not roll back exactly."""


class ConstraintDeadEnd(DecodingError):
    """No token may follow what was emitted."""
