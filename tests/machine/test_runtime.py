"""What MLX tells of its device, by version and chip."""

import ast
import json

import pytest
from recorded import recording

from dspark.machine.facts import Runtime
from dspark.machine.runtime import with_device

DEVICES = {
    "m1-16gb-macos13": ("Apple M1", "applegpu_g13g", 11453251584),
    "m2-ultra-192gb-mlx0.12": (None, "applegpu_g14d", 188743680000),
    "m2-ultra-192gb.json": (None, "applegpu_g14d", 173173080064),
    "m3-ultra-256gb": ("Apple M3 Ultra", "applegpu_g15d", 223338299392),
    "m4-32gb-rounded-gb": ("Apple M4", "applegpu_g16g", 24),
    "m4-pro-48gb": ("Apple M4 Pro", "applegpu_g16s", 40200896512),
    "m5-max-128gb-raised-limit.json": ("Apple M5 Max", "applegpu_g17s", 120259084288),
    "m5-max-128gb": ("Apple M5 Max", "applegpu_g17s", 115448725504),
    "a18pro-8gb-macbook-neo.json": ("Apple A18 Pro", "applegpu_g17p", 5726633984),
}


@pytest.mark.parametrize("name", DEVICES)
def test_device(name: str) -> None:
    text = recording(f"mlx_device_info.{name}")
    info = json.loads(text) if name.endswith(".json") else ast.literal_eval(text)
    found = with_device(Runtime("3.12"), info, gpu=True)
    assert (found.device_name, found.gpu_architecture, found.working_set_bytes) == DEVICES[name]
    assert found.device == "gpu"


def test_n6_missing_and_renamed_keys_are_unknown() -> None:
    found = with_device(Runtime("3.12"), {"name": "Apple M9", "max_recommended_working_set_size": None}, gpu=False)
    assert found == Runtime("3.12", device="cpu")
