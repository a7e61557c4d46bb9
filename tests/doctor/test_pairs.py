"""Which pairs fit, and which are on disk."""

import pytest
from hub.modelfolders import write_model

from dspark.doctor import pairs
from dspark.hub import inventory
from dspark.hub.registry import PAIRS
from dspark.machine.facts import Chip, Machine, Memory, Runtime, System

GIB = 1024**3
MAC = Runtime("3.12.1", device="gpu", working_set_bytes=12 * 10**9)
QWEN = next(pair for pair in PAIRS if pair.id == "qwen3-8b")  # 11 GB


def states(*inventories, memory=None, runtime=MAC):
    machine = Machine(Chip(), System("macOS"), memory or Memory(16 * GIB, 14 * GIB), runtime)
    found = pairs.survey(inventories, machine)
    return {state.id: state for state in found}


@pytest.mark.parametrize(
    ("memory", "runtime", "fit"),
    [
        (Memory(16 * GIB, 14 * GIB), MAC, "tight"),
        (Memory(64 * GIB, 60 * GIB), Runtime("3", device="gpu", working_set_bytes=50 * 10**9), "fits"),
        (Memory(16 * GIB, 4 * GIB), MAC, "not now"),
        (Memory(16 * GIB, None), MAC, "tight"),
        (Memory(16 * GIB, 14 * GIB), Runtime("3", device="gpu", working_set_bytes=10 * 10**9), "too large"),
        (Memory(8 * GIB, 7 * GIB), Runtime("3", mlx_error="x"), "too large"),
        (Memory(16 * GIB, 14 * GIB), Runtime("3", device="cpu"), "fits"),
        (Memory(), Runtime("3", mlx_error="x"), "unknown"),
    ],
)
def test_fit(memory, runtime, fit):
    assert states(memory=memory, runtime=runtime)["qwen3-8b"].fit == fit


def test_the_largest_come_first():
    sizes = [state.peak_ram_gb for state in states().values()]
    assert sizes == sorted(sizes, reverse=True)


def test_l10_a_target_is_known_by_name_in_any_quantization_unless_its_config_says_otherwise(tmp_path):
    sizes = {"hidden_size": QWEN.hidden_size, "num_hidden_layers": QWEN.layers, "model_type": "qwen3"}
    write_model(tmp_path / "someone" / "Qwen3-8B-4bit", config=sizes)
    write_model(tmp_path / "someone" / "Qwen3-4B-4bit", config=sizes)
    found = states(inventory.take(tmp_path), None)
    assert [state.id for state in found.values() if state.targets and state.id != "demo"] == ["qwen3-8b"]
    assert found["qwen3-8b"].targets[0].endswith("Qwen3-8B-4bit")
    assert not found["qwen3-8b"].complete


def test_a_drafter_is_found_where_a_load_would_find_it(home):
    write_model(home / ".mlx-dspark" / "models" / (QWEN.drafter or ""))
    assert states()["qwen3-8b"].drafters == (f"~/.mlx-dspark/models/{QWEN.drafter}",)


def test_the_demo_has_its_drafter_always():
    assert states()["demo"].drafters
    assert states()["demo"].targets == ()


def test_the_summary(tmp_path):
    write_model(tmp_path / "mlx-community" / "Qwen3-8B-8bit")
    here = inventory.take(tmp_path)
    fits = pairs.summary(states(here).values())
    assert fits.status == "ok"
    assert "on disk: qwen3-8b (without its drafter)" in fits.seen
    assert "none yet" in pairs.summary(states().values()).seen
    assert "unknown" in pairs.summary(states(memory=Memory(), runtime=Runtime("3")).values()).seen


def test_the_demo_model_is_known_by_its_folder(home):
    folder = home / ".mlx-dspark" / "models" / "demo-smollm2-135m-instruct-q4"
    write_model(folder, config={"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30})
    assert states(inventory.take(folder.parent))["demo"].complete


def test_a_folder_is_too_large_by_its_own_weights_not_by_those_of_another_build(tmp_path):
    folder = write_model(tmp_path / "mlx-community" / "Qwen3-8B-4bit")
    tiny = Memory(8 * GIB, 8 * GIB)
    state = states(inventory.take(tmp_path), memory=tiny, runtime=Runtime("3"))["qwen3-8b"]
    assert (state.fit, state.too_large) == ("too large", ())
    assert pairs.summary([state]).status == "ok"
    with (folder / "model.safetensors").open("ab") as weights:
        weights.truncate(9 * GIB)  # takes no room on the disk
    state = states(inventory.take(tmp_path), memory=tiny, runtime=Runtime("3"))["qwen3-8b"]
    assert state.too_large == state.targets
    assert pairs.summary([state]).status == "warn"
