import pytest

from dspark.hub.registry import DEMO, PAIRS, Pair, find, fits

FORMS = ["{}", "{}-4bit", "{}-8bit", "{}-bf16", "{}-mxfp4", "{}-q4", "{}-MLX-4bit", "{}-4bit-DWQ", "{}-FP8", "{}_4bit"]
SAME_DRAFTERS = {"qwen3.8-27b-8bit": "qwen3.8-27b"}


def base(pair: Pair) -> str:
    """The target's name without organisation and quantization, spelled out."""
    name = pair.target.split("/")[1]
    for suffix in ("-MLX-bf16", "-mlx-bf16", "-mlx-2bit", "-8bit", "-4bit", "-bf16"):
        name = name.removesuffix(suffix)
    return name


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
@pytest.mark.parametrize("form", FORMS)
def test_any_quantization_from_anywhere_is_the_same_pair(pair, form):
    name = form.format(base(pair))
    for spelled in (
        f"other-org/{name}",
        name,
        f"/Users/x/my models/{name.lower()}",
        f"other-org--{name}",
        f"org_{name}",
    ):
        found = find(spelled)
        assert found is not None, spelled
        assert SAME_DRAFTERS.get(found.id, found.id) == SAME_DRAFTERS.get(pair.id, pair.id)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_a_pair_is_found_by_id_target_and_cache_folder(pair):
    assert find(pair.id) is pair
    assert find(pair.target) is pair
    assert find(f"/c/models--{pair.target.replace('/', '--')}/snapshots/0123abcd") is pair


OTHERS = """
Qwen/Qwen3-4B-Base Qwen3-4B-Instruct-2507-4bit Qwen3-4B-Thinking-2507-8bit Qwen3-0.6B-4bit Qwen3-1.7B Qwen3-32B-8bit
Qwen3-VL-4B-8bit Qwen2.5-4B-8bit Qwen3.6-27B-Claude-4.6-Opus-8bit LFM2.5-1.2B-MLX-bf16 LFM2.5-26B Bonsai-27B-mlx-2bit
gemma-4-12B-8bit gemma-4-1B-it-8bit SmolLM2-135M SmolLM2-360M-Instruct Qwen3-4B-GLM-4bit somebody/Qwen3-14B-abliterated
/ . snapshots 4bit deepseek-ai/dspark_qwen3_4b_block7 z-lab/Qwen3-4B-DFlash-b16
"""


@pytest.mark.parametrize("name", OTHERS.split())
def test_other_models_are_unknown(name):
    assert find(name) is None


def test_an_empty_name_is_unknown():
    assert find("") is None


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("Qwen3.8-27B-4bit", None, "qwen3.8-27b"),
        ("Qwen3.8-27B-MLX-8bit", None, "qwen3.8-27b-8bit"),
        ("Qwen3.8-27B-3bit", None, "qwen3.8-27b"),
        ("Qwen3.8-27B-mxfp4", None, "qwen3.8-27b"),
        ("Qwen3.8-27B-6bit", None, "qwen3.8-27b-8bit"),
        ("Qwen/Qwen3.8-27B", None, "qwen3.8-27b-8bit"),
        ("Qwen/Qwen3.8-27B", {"quantization": {"group_size": 64, "bits": 4}}, "qwen3.8-27b"),
        ("Qwen3.8-27B-4bit", {"quantization": {"group_size": 64, "bits": 8}}, "qwen3.8-27b-8bit"),
    ],
)
def test_bits_choose_between_rows_of_one_target(name, config, expected):
    assert find(name, config).id == expected


def test_the_config_can_name_the_model_and_can_veto():
    config = {"_name_or_path": "Qwen/Qwen3-8B", "hidden_size": 4096, "num_hidden_layers": 36}
    assert find("/models/my-own-8bit", config).id == "qwen3-8b"
    assert find("/models/Qwen3-8B-8bit", {"hidden_size": 4096, "num_hidden_layers": 36}).id == "qwen3-8b"
    assert find("/models/Qwen3-8B-8bit", {"hidden_size": 2560, "num_hidden_layers": 36}) is None
    assert find("/models/Qwen3-8B-8bit", {"hidden_size": 4096, "num_hidden_layers": 48}) is None
    assert find("gemma-4-12B-it-8bit", {"text_config": {"hidden_size": 3840, "num_hidden_layers": 48}}) is not None
    assert find("gemma-4-12B-it-8bit", {"text_config": {"hidden_size": 2560}}) is None


@pytest.mark.parametrize("quantization", [None, 4, "4-bit", [4], {}, {"bits": None}, {"bits": "4"}, {"bits": True}])
def test_a_quantization_that_says_no_bits_leaves_it_to_the_name(quantization):
    assert find("Qwen3.8-27B-8bit", {"quantization": quantization}).id == "qwen3.8-27b-8bit"


def test_the_data_is_sound():
    assert len({pair.id for pair in PAIRS}) == len(PAIRS) == 18
    for pair in PAIRS:
        assert pair.drafter is not None
        assert pair.peak_ram_gb > 0
        assert pair.measured_by
        assert pair.published_speedup or pair is DEMO


def test_fits_leaves_macos_its_share():
    assert fits(8)[0].id == "lfm2.5-1.2b"
    assert "qwen3-8b" not in {pair.id for pair in fits(16)}  # 11 GB of the 10.7 that the GPU may hold
    assert fits(48)[0].id == "qwen3.6-27b"
    assert fits(0.5) == []
