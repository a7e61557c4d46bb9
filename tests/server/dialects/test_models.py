"""The listing of models."""

import pytest

from dspark.errors import ModelNotFound
from dspark.server.dialects import models

CARD = models.ModelCard("mlx-community/Qwen3-4B-8bit", 1_700_000_000, 40960, 32768)


def test_e16_the_loaded_model_and_its_window():
    listed = models.listing(CARD)
    [entry] = listed["data"]
    assert listed["object"] == "list" and listed["first_id"] == CARD.id
    assert entry["id"] == CARD.id and entry["display_name"] == "Qwen3-4B-8bit"
    assert (entry["context_window"], entry["created_at"]) == (40960, "2023-11-14T22:13:20Z")
    assert models.entry(CARD, "mlx-community/Qwen3-4B-8bit") == entry


def test_e16_without_a_model_the_list_is_empty():
    assert models.listing(None)["data"] == []
    for card in (None, CARD):
        with pytest.raises(ModelNotFound, match="gpt-4o"):
            models.entry(card, "gpt-4o")
