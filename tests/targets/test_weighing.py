"""What a token reads: by tiny models of many families, whose every tensor can be counted by hand."""

import json
from pathlib import Path

import pytest
from families import COMMON, FAMILIES, WINDOW, family, write_family
from mlx.utils import tree_flatten
from tiny import LLAMA, write_llama

from dspark.errors import CheckpointError
from dspark.targets.target import Target
from dspark.targets.traffic import CacheLayers, Traffic
from dspark.targets.weighing import weigh, weigh_config, weigh_folder

FLOAT = 4
HIDDEN, VOCABULARY = COMMON["hidden_size"], COMMON["vocab_size"]
TABLE = HIDDEN * VOCABULARY * FLOAT


def sizes(target: Target) -> dict[str, int]:
    return {name: array.nbytes for name, array in tree_flatten(target.model.parameters())}


def test_an_untied_head_is_read_and_the_embedding_table_is_not() -> None:
    target = family("llama")
    found = weigh(target)
    assert found.head_bytes == TABLE
    assert found.weight_bytes == sum(sizes(target).values()) - TABLE
    assert found.weights == found.weight_bytes // FLOAT
    assert found.parameter_bytes == sum(sizes(target).values())
    assert (found.context_window, found.source) == (512, "loaded")


def test_a_tied_table_is_read_once_as_the_head() -> None:
    target = family("lfm2")
    found = weigh(target)
    assert (found.head_bytes, found.weight_bytes) == (TABLE, sum(sizes(target).values()))


def test_b21_routed_experts_count_by_those_chosen_and_shared_ones_in_full() -> None:
    target = family("deepseek_v3")  # 2 of 4 routed experts and a shared one
    routed = sum(size for name, size in sizes(target).items() if "switch_mlp" in name)
    shared = sum(size for name, size in sizes(target).items() if "shared_experts" in name)
    found = weigh(target)
    assert routed > 0 and shared > 0
    assert found.expert_bytes == routed // 2
    assert found.weight_bytes == sum(sizes(target).values()) - TABLE - routed // 2


def test_b21_a_looped_stack_is_read_at_each_pass() -> None:
    target = family("nanbeige")  # 2 loops
    layers = sum(size for name, size in sizes(target).items() if ".layers." in name)
    found = weigh(target)
    assert found.weight_bytes >= sum(sizes(target).values()) - TABLE + layers
    assert [(kind.kind, kind.layers) for kind in found.caches] == [("full", 2 * COMMON["num_hidden_layers"])]


@pytest.mark.parametrize(
    ("name", "caches"),
    [
        ("llama", [CacheLayers("full", 3, row_bytes=3 * 2 * 2 * 8 * FLOAT)]),
        ("deepseek_v3", [CacheLayers("latent", 3, row_bytes=3 * (16 + 4) * FLOAT)]),
        (
            "olmo3",
            [
                CacheLayers("window", 2, row_bytes=2 * 2 * 2 * 8 * FLOAT, window_tokens=WINDOW),
                CacheLayers("full", 1, row_bytes=2 * 2 * 8 * FLOAT),
            ],
        ),
        ("mamba2", [CacheLayers("recurrent", 3, state_bytes=9600)]),
        (
            "qwen3_next",
            [CacheLayers("recurrent", 2, state_bytes=3584), CacheLayers("full", 1, row_bytes=2 * 2 * 8 * FLOAT)],
        ),
    ],
)
def test_caches_by_kind_of_layer(name: str, caches: list[CacheLayers]) -> None:
    assert list(weigh(family(name)).caches) == caches


def test_what_moves_at_a_depth() -> None:
    window = CacheLayers("window", 1, row_bytes=10, window_tokens=100)
    full, recurrent = CacheLayers("full", 1, row_bytes=1), CacheLayers("recurrent", 1, state_bytes=1000)
    traffic = Traffic(5000, 2500, 0, 0, 5000, (window, full, recurrent), 4096, "config")
    assert traffic.bytes_per_token(0) == 7000  # a state is read and written
    assert traffic.bytes_per_token(50) == 7000 + 550
    assert traffic.bytes_per_token(1000) == 7000 + 1000 + 1000
    assert traffic.growth_bytes == 1


def test_kv_bits_shrink_full_attention_only(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m", head_dim=32)
    plain, packed = weigh_folder(folder), weigh_folder(folder, kv_bits=8)
    (row,) = {layers.row_bytes for layers in packed.caches}
    # 8 bits, and a scale and a bias of 4 bytes for every 32 of them
    assert row == plain.caches[0].row_bytes * (8 + 2 * 32 / 32) / 32
    rings = write_family(tmp_path / "g", "recurrent_gemma")
    assert weigh_folder(rings, kv_bits=8).caches == weigh_folder(rings).caches


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma3_text", "qwen3_next"])
def test_a_folder_is_weighed_like_the_loaded_model(tmp_path: Path, name: str) -> None:
    folder, target = write_family(tmp_path / name, name), family(name)
    found, loaded = weigh_folder(folder), weigh(target)
    assert (found.weight_bytes, found.caches) == (loaded.weight_bytes, loaded.caches)
    assert found.source == "checkpoint"


def test_scales_of_quantized_layers_count() -> None:
    plain = weigh_config({**LLAMA, "dtype": "float32"})
    packed = weigh_config({**LLAMA, "dtype": "float32", "quantization": {"bits": 4, "group_size": 32}})
    assert packed.weights == plain.weights
    matrices = plain.weights - 13 * LLAMA["hidden_size"]  # 13 norms stay as they are
    assert packed.weight_bytes == matrices * (4 + 2 * 32 / 32) / 8 + 13 * LLAMA["hidden_size"] * FLOAT


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "qwen3_5_moe", "nanbeige"])
def test_b21_a_config_alone_tells_the_same_as_its_weights(name: str) -> None:
    target = family(name)
    config = {**COMMON, **FAMILIES[name], "model_type": name, "dtype": "float32"}
    found, loaded = weigh_config(json.loads(json.dumps(config))), weigh(target)
    assert (found.weight_bytes, found.expert_bytes, found.caches) == (
        loaded.weight_bytes,
        loaded.expert_bytes,
        loaded.caches,
    )


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LLAMA, "dtype"),  # half or full precision: not to be guessed
        ({**LLAMA, "dtype": "int3"}, "int3"),
        ({"model_type": "no_such_model"}, "no_such_model"),
        ({}, "model_type"),
    ],
)
def test_a_config_that_does_not_tell_is_refused(config: dict[str, object], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        weigh_config(config)


def test_weighing_leaves_the_model_as_it_was() -> None:
    target = family("mixtral")
    before = {path: type(module) for path, module in target.model.named_modules()}
    weigh(target)
    assert {path: type(module) for path, module in target.model.named_modules()} == before


@pytest.mark.real
def test_the_demo_model() -> None:
    from dspark.hub import demo

    found = weigh_folder(demo.target("fp32"))
    assert found.weight_bytes == found.parameter_bytes == 538_060_032  # tied: all of it is read
    assert found.caches == (CacheLayers("full", 30, row_bytes=30 * 2 * 3 * 64 * FLOAT),)
