"""What every dialect's renderer offers to the handler that drives it."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from dspark.server.order import Order
from dspark.server.parts import Ending, Part

Frame = tuple[str | None, dict[str, Any] | Literal["[DONE]"]]


@dataclass(frozen=True)
class Context:
    """What a reply must know besides its order.

    `id` is unique and has no prefix, `created` is in Unix seconds, `model` is the id of the model that answers, as
    listed, `prompt_tokens` the length of the prompt, `request_id` what the response's `x-request-id` says.
    """

    id: str
    created: int
    model: str
    prompt_tokens: int = 0
    request_id: str | None = None


class Reply(Protocol):
    """Renders one answer, of one or several choices, streamed or whole.

    Streamed: the frames of `begin`, of each `feed`, and of one `finish` a choice; the last `finish` ends the stream.
    `fail` ends it in place of whatever was to come. `keepalive` may be sent in between. Whole: the same calls with the
    frames thrown away, then `whole`.
    """

    def __init__(self, order: Order, context: Context) -> None: ...

    def begin(self) -> list[Frame]: ...

    def feed(self, part: Part, choice: int = 0) -> list[Frame]: ...

    def finish(self, ending: Ending, choice: int = 0) -> list[Frame]: ...

    def fail(self, error: Exception) -> list[Frame]: ...

    def keepalive(self) -> Frame: ...

    def whole(self) -> dict[str, Any]: ...
