"""The listing of models, for both SDKs at once."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dspark.errors import ModelNotFound


@dataclass(frozen=True)
class ModelCard:
    """A model that answers. `created` is when it was loaded, in Unix seconds; `context_window` counts tokens."""

    id: str
    created: int
    context_window: int
    max_output_tokens: int | None = None

    def entry(self) -> dict[str, Any]:
        """As both SDKs read it."""
        return {
            "id": self.id,
            "object": "model",
            "type": "model",
            "created": self.created,
            "created_at": datetime.fromtimestamp(self.created, UTC).isoformat().replace("+00:00", "Z"),
            "lifecycle": "active",
            "owned_by": "mlx-dspark",
            "display_name": self.id.rstrip("/").rsplit("/", 1)[-1],
            "context_window": self.context_window,
            "max_input_tokens": self.context_window,
            "max_tokens": self.max_output_tokens,
        }


def listing(card: ModelCard | None) -> dict[str, Any]:
    """`GET /v1/models`: the loaded model, or none."""
    entries = [card.entry()] if card else []
    ends = {"first_id": card.id, "last_id": card.id} if card else {"first_id": None, "last_id": None}
    return {"object": "list", "data": entries, "has_more": False, **ends}


def entry(card: ModelCard | None, wanted: str) -> dict[str, Any]:
    """`GET /v1/models/{id}`.

    Raises:
        ModelNotFound: another one is loaded, or none.
    """
    if card is None:
        raise ModelNotFound(f"there is no model {wanted!r} here: none is loaded")
    if wanted != card.id:
        raise ModelNotFound(f"there is no model {wanted!r} here; {card.id!r} is loaded")
    return card.entry()
