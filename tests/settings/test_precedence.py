"""Which source counts, what each may say, and that the origin of every value is told."""

import logging

import pytest

from dspark.errors import StorageError, UsageError
from dspark.settings import SECTIONS, SETTINGS, api_key, resolve
from dspark.settings.kinds import Switch

FILE = "model: {kv_bits: 4, model: file-model}\nspeculation:\n  max_draft: 2\n"


def test_p7_flag_over_variable_over_file_over_default(write):
    assert resolve().model.kv_bits == 0
    write(FILE)
    assert (resolve().model.kv_bits, resolve().origin("kv_bits")) == (4, "file")
    variables = {"MLX_DSPARK_KV_BITS": "8"}
    assert (resolve({}, variables).model.kv_bits, resolve({}, variables).origin("kv_bits")) == (8, "variable")
    both = resolve({"kv_bits": 0}, variables)
    assert (both.model.kv_bits, both.origin("kv_bits")) == (0, "flag"), "an explicit zero is no absence"


def test_p7_the_place_of_each_value_is_told(write):
    write(FILE)
    shown = resolve({"mode": "lookup"}, {"MLX_DSPARK_PORT": "0"}).as_dict()
    assert shown["model"]["mode"] == {"value": "lookup", "origin": "flag", "place": "--mode"}
    assert shown["server"]["port"] == {"value": 0, "origin": "variable", "place": "MLX_DSPARK_PORT"}
    assert shown["speculation"]["max_draft"]["place"] == "~/.mlx-dspark/settings.yaml line 3"
    assert shown["server"]["host"] == {"value": "127.0.0.1", "origin": "default", "place": None}


def test_mlx_dspark_home_moves_the_file(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "settings.yaml").write_text("server: {port: 9}")
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path / "elsewhere"))
    assert resolve().server.port == 9


def test_names_are_unique_and_every_default_is_of_its_kind():
    assert len(SETTINGS) == sum(len(vars(kind)["__dataclass_fields__"]) for kind in SECTIONS.values())
    for setting in SETTINGS.values():
        if setting.default not in (None, ()):
            assert setting.kind.read(setting.default) == setting.default


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_is_read_from_each_of_its_sources(name, write, caplog):
    setting = SETTINGS[name]
    examples = ("4", "0.25", "true", "auto", "fp32", "high", "some-text")
    text = next(text for text in examples if _reads(setting, text))
    if "variable" in setting.sources:
        assert resolve({}, {setting.variable: text}).origin(name) == "variable"
    plain = f'["{text}"]' if setting.default == () else f'"{text}"'
    write(f"{setting.section}:\n  {name}: {plain}")
    assert resolve().origin(name) == ("file" if "file" in setting.sources else "default")
    assert bool(caplog.records) is ("file" not in setting.sources), "what is not taken is said"


def _reads(setting, text):
    try:
        setting.kind.read(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "value"), [("auto", "auto"), ("0", 0), ("3", 3), ("-1", None), ("3.5", None), ("x", None), (" ", None)]
)
def test_p4_max_draft_takes_auto_and_numbers_from_0_and_nothing_else(text, value):
    variables = {"MLX_DSPARK_MAX_DRAFT": text}
    if value is None:
        with pytest.raises(UsageError, match=rf"^MLX_DSPARK_MAX_DRAFT: '{text}' .* from 0 to \d+, or auto$"):
            resolve({}, variables)
    else:
        assert resolve({}, variables).speculation.max_draft == value


def test_p4_an_unset_switch_is_neither_on_nor_off():
    assert resolve().speculation.lookup_drafts is None
    assert resolve({"lookup_drafts": False}).speculation.lookup_drafts is False


@pytest.mark.parametrize(
    ("value", "on"),
    [(True, True), (False, False), ("YES", True), ("0", False), ("maybe", None), (1, None), (2.0, None)],
)
def test_a_switch_reads_words_and_no_numbers(value, on):
    if on is None:
        with pytest.raises(ValueError):
            Switch().read(value)
    else:
        assert Switch().read(value) is on


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("model: {kv_bits: true}", "True"),
        ("model: {kv_bits: 4.0}", "4.0"),
        ("model: {model: 7}", "7"),
        ("model: {drafter_bits: 7}", "7"),
        ("speculation: {confidence_threshold: .nan}", "nan"),
        (f"speculation: {{confidence_threshold: {10**400}}}", "a value of type int"),
        ("speculation: {confidence_threshold: 1e999}", "'1e999'"),
        ("generation: {default_max_tokens: 0}", "0"),
        ("server: {cors_origins: [1]}", "a list or mapping"),
        ("server: {host: {}}", "a list or mapping"),
    ],
)
def test_a_value_of_another_kind_is_named_with_its_key_and_what_is_wanted(line, value, write):
    write(line)
    key = line.replace(": {", ".", 1).split(":")[0]
    with pytest.raises(UsageError) as raised:
        resolve()
    said = str(raised.value)
    assert said.startswith(f"~/.mlx-dspark/settings.yaml line 1, {key}: {value} is not possible; give ")
    assert "\n" not in said


def test_a_variable_that_means_nothing_is_named_with_the_nearest(caplog):
    resolve({}, {"MLX_DSPARK_KVBITS": "8", "MLX_DSPARK_HOME": "/x", "MLX_DSPARK_KV_BITS": ""})
    assert [record.getMessage() for record in caplog.records] == [
        "the variable MLX_DSPARK_KVBITS means nothing here; did you mean MLX_DSPARK_KV_BITS?"
    ]


def test_p6_what_stands_beside_a_model_goes_with_it_and_what_is_the_machines_stays(write, caplog):
    caplog.set_level(logging.INFO)
    write("model: {model: a, drafter: a-draft, kv_bits: 4}\nspeculation: {max_draft: 3}")
    kept = resolve({"model": "a"})
    assert (kept.model.drafter, kept.speculation.max_draft) == ("a-draft", 3)
    changed = resolve({"model": "b"})
    assert (changed.model.drafter, changed.speculation.max_draft, changed.model.kv_bits) == (None, None, 4)
    assert "line 1 is passed over: it belongs to a, not to b" in caplog.text


def test_p6_a_mode_that_stands_beside_no_model_is_for_all(write):
    write("model: {mode: lookup}")
    assert resolve({"model": "b"}).model.mode == "lookup"


def test_trust_is_for_one_process_and_never_from_the_file(write, caplog):
    write("model: {trust_remote_code: true}")
    assert resolve().model.trust_remote_code is False
    assert "give --trust-remote-code or set MLX_DSPARK_TRUST_REMOTE_CODE" in caplog.text
    assert resolve({}, {"MLX_DSPARK_TRUST_REMOTE_CODE": "1"}).model.trust_remote_code is True


def test_open_inference_is_from_the_file_alone(write, caplog):
    assert not resolve({}, {"MLX_DSPARK_ALLOW_UNAUTHENTICATED_INFERENCE": "1"}).server.allow_unauthenticated_inference
    assert "MLX_DSPARK_ALLOW_UNAUTHENTICATED_INFERENCE means nothing here" in caplog.text
    write("server: {allow_unauthenticated_inference: true}")
    assert resolve().server.allow_unauthenticated_inference


def test_a_home_that_is_not_known_leaves_the_rest(monkeypatch):
    monkeypatch.setenv("MLX_DSPARK_HOME", "~nobody-by-this-name/x")
    assert resolve({"model": "b"}).model.model == "b"


def test_the_key_is_never_shown():
    settings = resolve({"api_key": "sesame-open"})
    assert api_key(settings) == "sesame-open"
    assert "sesame" not in str(settings.as_dict())


@pytest.mark.parametrize("key", ["abc", "with space", "schlüssel", "tab\tkey"])
def test_a_key_that_cannot_be_one_is_refused_without_showing_it(key):
    with pytest.raises(UsageError, match=r"^MLX_DSPARK_API_KEY: ") as raised:
        resolve({}, {"MLX_DSPARK_API_KEY": key})
    assert key not in str(raised.value)


def test_the_key_file_gives_its_first_line_unless_a_stronger_source_gives_a_key(tmp_path):
    file = tmp_path / "key"
    file.write_text("from-the-file\nmore\n")
    assert api_key(resolve({"api_key_file": str(file)}, {"MLX_DSPARK_API_KEY": "weaker"})) == "from-the-file"
    assert api_key(resolve({"api_key": "stronger"}, {"MLX_DSPARK_API_KEY_FILE": str(file)})) == "stronger"
    with pytest.raises(UsageError, match="leave one of them"):
        api_key(resolve({"api_key": "one-key", "api_key_file": str(file)}))
    with pytest.raises(StorageError, match=r"--api-key-file: .*No such file"):
        api_key(resolve({"api_key_file": str(tmp_path / "none")}))
