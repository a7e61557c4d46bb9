from pathlib import Path

import pytest

from dspark.errors import UsageError
from dspark.racing.plan import Choice
from dspark.racing.prompts import Prompt, builtin
from dspark.racing.suite import read_suite


@pytest.fixture
def suite(tmp_path: Path):
    def write(content: str) -> Path:
        path = tmp_path / "suite.yaml"
        path.write_text(content)
        return path

    return write


def test_a_model_alone_is_a_suite_with_the_defaults_of_the_command_line(suite) -> None:
    plan = read_suite(suite("models: [demo]\n"))
    assert plan.choices == (Choice("demo"),)
    assert (plan.arms, list(plan.prompts), plan.depths) == (None, builtin(), (0,))
    assert (plan.max_tokens, plan.trials, plan.seed, plan.cooldown_s) == (64, 3, 0, 0.0)


def test_every_key_arrives(suite, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "c", "class": "code"}\n')
    plan = read_suite(
        suite(
            """
            models:
              - demo
              - model: other
                drafter: none
                precision: q4
                kv_bits: 8
                drafter_bits: 4
                drafter_window: 512
                sdpa_split: false
                profile: mine.yaml
                trust_remote_code: true
            arms: [lookup, "dspark:cap=4"]
            prompts: [{text: "a b"}, {file: mine.jsonl}]
            depths: [0, 1k, 4096]
            max_tokens: 9
            trials: 2
            seed: 5
            cooldown: 1
            temperature: 0.5
            top_p: 0.9
            top_k: 7
            min_p: 0.1
            """
        )
    )
    assert plan.choices[1] == Choice("other", "none", "q4", 8, 4, 512, False, "mine.yaml", True)
    assert [arm.label for arm in plan.arms or ()] == ["baseline", "lookup", "dspark:cap=4"]
    assert plan.prompts == (Prompt("a b", "own"), Prompt("c", "code"))
    assert plan.depths == (0, 1024, 4096)
    assert (plan.max_tokens, plan.trials, plan.seed, plan.cooldown_s) == (9, 2, 5, 1.0)
    sampling = plan.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.1)
    assert sampling.seed == 5


def test_a_race_for_each_model_and_depth_model_by_model(suite) -> None:
    plan = read_suite(suite("models: [a, {model: a, kv_bits: 8}]\ndepths: [0, 4k]\n"))
    heats = list(plan.heats())
    assert [heat.name for heat in heats] == ["a", "a at 4k", "a kv_bits=8", "a kv_bits=8 at 4k"]
    assert {prompt.depth for prompt in plan.prompts_at(heats[1])} == {4096}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "begin with `models: [demo]`"),
        ("- demo\n", "begin with `models: [demo]`"),
        ("arms: [lookup]\n", "models is missing"),
        ("models: []\n", "models: "),
        ("models: demo\n", "models: "),
        ("models: [3]\n", "models.1: "),
        ("models: [demo]\ntrails: 3\n", "trails is unknown (possible: models, arms"),
        ("models: [{model: demo, drafer: x}]\n", "models.1.drafer is unknown (possible: model, drafter"),
        ("models: [{model: demo, precision: q5}]\n", "models.1.precision: "),
        ("models: [{model: demo, kv_bits: '8'}]\n", "models.1.kv_bits: "),
        ("models: [demo]\ntrials: '3'\n", "trials: "),
        ("models: [demo]\ntrials: true\n", "trials: "),
        ("models: [demo]\ntrials: 0\n", "--trials 0"),
        ("models: [demo]\nmax_tokens: 0\n", "--max-tokens 0"),
        ("models: [demo]\ncooldown: -1\n", "--cooldown -1"),
        ("models: [demo]\ncooldown: .nan\n", "--cooldown nan"),
        ("models: [demo]\ntemperature: 3.0\n", "temperature 3.0 is out of range"),
        ("models: [demo]\ntop_p: 0.0\n", "top_p 0 leaves no token"),
        ("models: [demo]\narms: [nonsense]\n", "'nonsense'"),
        ("models: [demo]\narms: []\n", "arms: "),
        ("models: [demo]\ndepths: [1x]\n", "--depth '1x'"),
        ("models: [demo]\ndepths: [-1]\n", "--depth '-1'"),
        ("models: [demo]\ndepths: [true]\n", "depths.1: "),
        ("models: [demo]\nprompts: [buitin]\n", "prompts.1: "),
        ("models: [demo]\nprompts: [{}]\n", "give builtin, {file: PATH} or {text: PROMPT}"),
        ("models: [demo]\nprompts: [{file: a, text: b}]\n", "give builtin, {file: PATH} or {text: PROMPT}"),
        ("models: [demo]\nprompts: [{fil: a}]\n", "prompts.1.fil is unknown (possible: builtin, file, text"),
        ("models: [demo]\nprompts: [{file: none.jsonl}]\n", "none.jsonl does not exist"),
        ('models: [demo]\nprompts: [{file: "\\ud800"}]\n', "is no name of a file"),
        ('models: [demo]\nprompts: [{file: "a\\0b"}]\n', "is no name of a file"),
        ("models: [demo]\nprompts: [{text: ' '}]\n", "--prompt is empty"),
        ("models: [demo]\nmodels: [other]\n", "line 2: 'models' stands in line 1 already"),
        ("models: [demo\n", "line 2: not YAML"),
        ("models: !!python/object:os.system [demo]\n", "line 1: aliases and tags"),
        ("? [a]\n: b\n", "line 1: a key must be"),
        ("models: [demo]\nseed: 2020-13-45\n", "month must be in 1..12"),
        ("[" * 100_000, "not YAML"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file_and_the_place(suite, content: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_suite(suite(content))
    message = str(caught.value)
    assert named in message and "suite.yaml: " in message and "\n" not in message


def test_several_mistakes_are_all_named(suite) -> None:
    with pytest.raises(UsageError, match=r"seed: .*; trails is unknown"):
        read_suite(suite("models: [demo]\ntrails: 3\nseed: x\n"))


def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"models: [caf\xe9]\n")
    (tmp_path / "large.yaml").write_bytes(b"#" * (2**20 + 1))
    wrong = {"none.yaml": "not exist", ".": "cannot be read", "latin.yaml": "not UTF-8", "large.yaml": "1024 KiB"}
    for name, named in wrong.items():
        with pytest.raises(UsageError, match=named):
            read_suite(tmp_path / name)
