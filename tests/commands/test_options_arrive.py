"""Every option of every command reaches what it is for: an option without a proof here fails.

A proof runs the command with the option and looks at where it must have arrived: the options that the engine loads
with, the request that it decodes, the body that a server is sent, or what comes out.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import typer
from contractserver import READY, ContractServer
from tiny import write_head, write_llama

from dspark import client
from dspark.calibrating import calibration
from dspark.commands import serve
from dspark.commands.app import app, run
from dspark.engine import Engine, LoadOptions
from dspark.errors import DSparkError
from dspark.machine import bandwidth
from dspark.server.hardware import Hardware
from dspark.tuning.timing import Stopwatch

TYPERS_OWN = {"--help", "--install-completion", "--show-completion"}
PROOFS: dict[tuple[str, str], Callable[["Bench"], None]] = {}


def every_option() -> list[tuple[str, str]]:
    """(command, flag) of all that the command line takes; a switch with two names counts as one."""
    root = typer.main.get_command(app)
    commands = {"": root, **root.commands}
    found = [(name, option.opts[0]) for name, command in commands.items() for option in command.params]
    return [one for one in found if one[1] not in TYPERS_OWN]


@pytest.mark.parametrize(("command", "option"), every_option(), ids=lambda part: part or "mlx-dspark")
def test_each_option_arrives(command: str, option: str, bench: "Bench") -> None:
    assert (command, option) in PROOFS, f"add a proof that {option} of {command or 'mlx-dspark'} arrives"
    PROOFS[command, option](bench)


def test_no_proof_is_of_an_option_that_is_gone() -> None:
    assert set(PROOFS) <= set(every_option())


def proves(*commands: str, option: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a proof; one of several commands is told which it is run for."""

    def register(proof: Callable[..., None]) -> Callable[..., None]:
        for command in commands:
            assert (command, option) not in PROOFS
            PROOFS[command, option] = (lambda bench, c=command: proof(bench, c)) if len(commands) > 1 else proof
        return proof

    return register


# What servers have said of themselves, by flags.
HEALTH: dict[tuple[Any, ...], dict[str, Any]] = {}


class Arrived(DSparkError):
    """The engine was asked to load."""


class Bench:
    """A tiny pair, and the places where options arrive."""

    def __init__(self, target: str, head: str, folder: Any, patch: pytest.MonkeyPatch, capture: Any) -> None:
        self.target, self.head, self.folder, self.patch, self.capture = target, head, folder, patch, capture

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code and stdout."""
        self.capture.readouterr()
        code = run([str(argument) for argument in arguments])
        return code, self.capture.readouterr().out

    def asked(self, command: str, *flags: str) -> LoadOptions:
        """What `command` would load; nothing is."""
        seen: list[LoadOptions] = []

        def load(engine: Engine, options: LoadOptions, **_: Any) -> None:
            seen.append(options)
            raise Arrived("as asked")

        with self.patch.context() as patch:
            patch.setattr(Engine, "load", load)
            port = ("--port", "0") if command == "serve" else ()
            assert self.run(command, "--model", self.target, *port, *flags)[0] == 1
        return seen[0]

    def warmed(self, *flags: str) -> Any:
        """The request of a load's warm-up."""
        seen, generate = [], Engine.generate

        def heard(engine: Engine, request: Any) -> Any:
            seen.append(request)
            return generate(engine, request)

        with self.patch.context() as patch:
            patch.setattr(Engine, "generate", heard)
            pair = ("--model", self.target, "--drafter", self.head)
            code, out = self.run("load", *pair, "--json", *flags)
        assert code == 0, out
        return seen[0] if seen else None

    def sent(self, *flags: str) -> dict[str, Any]:
        """The body that a server is sent."""
        with ContractServer() as server:
            assert self.run("load", "--url", server.url, "--model", "org/m", *flags)[0] == 0
            return dict(server.body)

    def serves(self, *flags: Any, told: Callable[[Any, httpx.Client], Any]) -> Any:
        """What `told` finds out of a running server, of its app and over HTTP, once it has loaded."""
        found: list[Any] = []

        def look(app: Any, stop: Any, *, no_model: bool) -> None:
            if not no_model:
                app.load().wait()
            with httpx.Client(base_url=app.http.url, trust_env=False, timeout=30) as http:
                found.append(told(app, http))

        port = () if "--port" in flags else ("--port", 0)
        with self.patch.context() as patch:
            patch.setattr(serve, "_serve", look)
            patch.setattr(Hardware, "measure", lambda hardware: None)
            code, out = self.run("serve", "--model", self.target, *port, *flags)
        assert code == 0, out
        return found[0]

    def health(self, *flags: Any) -> dict[str, Any]:
        """What a server that was started with these flags says of itself."""
        if flags not in HEALTH:
            pair = ("--drafter", self.head, "--no-warmup")
            HEALTH[flags] = self.serves(*pair, *flags, told=lambda app, http: http.get("/health").json())
        return HEALTH[flags]

    def raced(self, *flags: str) -> dict[str, Any]:
        """The JSON of a small race."""
        own = ("--max-tokens", "3", "--trials", "1", "--drafter", "none")
        arm = () if "--arm" in flags else ("--arm", "baseline")
        prompt = () if any(str(flag).startswith("--prompt") for flag in flags) else ("--prompt", "abc")
        code, out = self.run("race", "--model", self.target, *own, *arm, *prompt, "--json", "-", *flags)
        assert code == 0
        return dict(json.loads(out))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("pair")
    return str(write_llama(root / "target")), str(write_head(root / "head"))


@pytest.fixture
def bench(
    folders: tuple[str, str],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    light_mlx_lm: None,
) -> Bench:
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(client, "POLL_SECONDS", 0.0)
    return Bench(*folders, tmp_path, monkeypatch, capsys)


# What is loaded ------------------------------------------------------------------------------------------------------


@proves("race", "load", "calibrate", "serve", option="--model")
def _(bench: Bench, command: str) -> None:
    assert bench.asked(command).model == bench.target


def _loads(option: str, text: str, field: str, value: Any, *commands: str) -> None:
    @proves(*commands, option=option)
    def proof(bench: Bench, command: str = commands[0]) -> None:
        flags = (option,) if value is True else (option, text)
        assert getattr(bench.asked(command, *flags), field) == value
        assert getattr(bench.asked(command), field) != value, "the default is another"


_loads("--drafter", "org/d", "drafter", "org/d", "race", "load", "calibrate", "serve")
_loads("--kv-bits", "8", "kv_bits", 8, "race", "load", "calibrate", "serve")
_loads("--drafter-bits", "5", "drafter_bits", 5, "race", "load", "calibrate", "serve")
_loads("--drafter-window", "0", "drafter_window", 0, "race", "load", "calibrate", "serve")
_loads("--sdpa-split", "", "sdpa_split", True, "race", "load", "calibrate", "serve")
_loads("--precision", "q4", "precision", "q4", "race", "load", "calibrate", "serve")
_loads("--trust-remote-code", "", "trust_remote_code", True, "race", "load", "calibrate", "serve")
_loads("--profile", "none", "profile", "none", "race", "load", "serve")
_loads("--mode", "lookup", "mode", "lookup", "load", "serve")


def _keeps(option: str, text: str, field: str, value: Any) -> None:
    @proves("serve", option=option)
    def proof(bench: Bench) -> None:
        assert getattr(bench.asked("serve", *((option, text) if text else (option,))).prefix, field) == value
        assert getattr(bench.asked("serve").prefix, field) != value, "the default is another"


_keeps("--prefix-cache-slots", "3", "slots", 3)
_keeps("--prefix-cache-rungs", "512", "rung_tokens", 512)
_keeps("--prefix-cache-bytes", "1000", "limit_bytes", 1000)
_keeps("--prefix-cache-dir", "kept", "folder", "kept")
_keeps("--prefix-cache-disk-bytes", "2000", "disk_bytes", 2000)


@proves("serve", option="--prefix-cache")
def _(bench: Bench) -> None:
    assert bench.asked("serve").prefix.enabled and not bench.asked("serve", "--no-prefix-cache").prefix.enabled


@proves("load", option="--max-draft")
def _(bench: Bench) -> None:
    assert bench.warmed("--max-draft", "2").speculation.cap == 2
    assert bench.warmed("--max-draft", "0").speculation.mode == "baseline"


@proves("load", option="--lookup-drafts")
def _(bench: Bench) -> None:
    assert bench.warmed("--lookup-drafts", "--max-draft", "2").speculation.lookup is True
    assert bench.warmed("--no-lookup-drafts", "--max-draft", "2").speculation.lookup is False


@proves("load", option="--confidence-threshold")
def _(bench: Bench) -> None:
    assert bench.warmed("--confidence-threshold", "0.25", "--max-draft", "2").speculation.confidence == 0.25


@proves("load", option="--warmup")
def _(bench: Bench) -> None:
    assert bench.warmed("--max-draft", "2") is not None
    assert bench.warmed("--no-warmup") is None


@proves("load", option="--context-window")
def _(bench: Bench) -> None:
    _, out = bench.run(
        "load", "--model", bench.target, "--drafter", "none", "--no-warmup", "--json", "--context-window", 99
    )
    assert json.loads(out)["context"]["window_tokens"] == 99
    assert bench.sent("--context-window", "4096")["context_window"] == 4096


@proves("load", option="--dry-run")
def _(bench: Bench) -> None:
    bench.patch.setattr(Engine, "load", None)
    code, out = bench.run("load", "--model", bench.target, "--dry-run", "--json")
    assert code == 0 and json.loads(out)["verdict"] == "fits"


# What is calibrated --------------------------------------------------------------------------------------------------


def _calibrated(bench: Bench, *flags: Any) -> dict[str, Any]:
    code, out = bench.run("calibrate", "--model", bench.target, "--drafter", bench.head, "--json", *flags)
    assert code == 0, out
    return dict(json.loads(out))


def _calibrations(bench: Bench) -> dict[str, Any]:
    """One pair calibrated again and again, a flag at a time: they build on each other."""
    pair = ("calibrate", "--model", bench.target, "--drafter", bench.head)
    bench.patch.setattr(calibration, "Stopwatch", lambda budget_s, **more: Stopwatch(0.0, **more))
    found: dict[str, Any] = {"nothing to show": bench.run(*pair, "--show")[0]}
    found["--quick"] = _calibrated(bench, "--quick")
    found["--depths"] = _calibrated(bench, "--depths", "128,100")
    found["--show"] = _calibrated(bench, "--show")
    found["--force"] = _calibrated(bench, "--quick", "--force")
    code, out = bench.run(*pair, "--check", "--json")
    found["--check"] = {"code": code, **json.loads(out)}
    return found


def _calibrates(option: str, right: Callable[[dict[str, Any]], bool]) -> None:
    @proves("calibrate", option=option)
    def proof(bench: Bench) -> None:
        CALIBRATED.update(CALIBRATED or _calibrations(bench))
        assert right(CALIBRATED)


CALIBRATED: dict[str, Any] = {}
_calibrates("--json", lambda found: found["nothing to show"] == 1 and "derived" in found["--quick"])
_calibrates("--quick", lambda found: found["--quick"]["measured"]["quick"] and _depths(found["--quick"]) == [64])
_calibrates("--depths", lambda found: _depths(found["--depths"]) == [64, 100, 128])
_calibrates("--show", lambda found: found["--show"]["measured"]["date"] == found["--depths"]["measured"]["date"])
_calibrates("--force", lambda found: found["--force"]["measured"]["quick"] and found["--force"] != found["--quick"])
_calibrates("--check", lambda found: found["--check"]["holds"] is (found["--check"]["code"] == 0))


def _depths(profile: dict[str, Any]) -> list[int]:
    return [level["depth"] for level in profile["curves"]["levels"]]


# What a server is sent -----------------------------------------------------------------------------------------------


@proves("load", option="--url")
def _(bench: Bench) -> None:
    assert bench.sent() == {"model": "org/m"}
    flags = ["--mode", "lookup", "--max-draft", "auto", "--no-lookup-drafts", "--confidence-threshold", "0.5"]
    flags += ["--kv-bits", "4", "--drafter", "org/d", "--drafter-window", "7", "--warmup", "--no-sdpa-split"]
    assert bench.sent(*flags) == {
        "model": "org/m",
        "mode": "lookup",
        "max_draft": "auto",
        "lookup_drafts": False,
        "confidence_threshold": 0.5,
        "kv_bits": 4,
        "drafter": "org/d",
        "drafter_window": 7,
        "sdpa_split": False,
        "warmup": True,
    }


@proves("load", option="--memory-guard")
def _(bench: Bench) -> None:
    assert bench.sent("--no-memory-guard")["memory_guard"] is False


@proves("load", option="--enable-thinking")
def _(bench: Bench) -> None:
    assert bench.sent("--enable-thinking")["enable_thinking"] is True


@proves("load", option="--reasoning-effort")
def _(bench: Bench) -> None:
    assert bench.sent("--reasoning-effort", "xhigh")["reasoning_effort"] == "xhigh"


def _opens(bench: Bench, *flags: str) -> bool:
    with ContractServer(key="sesame") as server:
        return bench.run("load", "--url", server.url, "--model", "org/m", *flags)[0] == 0


@proves("load", option="--api-key")
def _(bench: Bench) -> None:
    assert _opens(bench, "--api-key", "sesame") and not _opens(bench)
    bench.patch.setenv("MLX_DSPARK_API_KEY", "sesame")
    assert _opens(bench)


@proves("load", option="--api-key-file")
def _(bench: Bench) -> None:
    (bench.folder / "key").write_text("sesame\n")
    assert _opens(bench, "--api-key-file", bench.folder / "key")


@proves("race", option="--url")
def _(bench: Bench) -> None:
    with ContractServer() as server:
        flags = ("--prompt", "hi", "--arm", "dspark:cap=2,lookup=off", "--max-tokens", 7)
        assert bench.run("race", "--url", server.url, *flags)[0] == 0
        arms = [{"mode": "baseline"}, {"mode": "dspark", "cap": 2, "lookup": False}]
        assert server.body == {"prompt": "hi", "arms": arms, "max_tokens": 7}


@proves("race", option="--api-key")
@proves("race", option="--api-key-file")
def _(bench: Bench) -> None:
    (bench.folder / "key").write_text("sesame\n")
    with ContractServer(key="sesame") as server:
        ask = ("race", "--url", server.url, "--prompt", "hi")
        assert [bench.run(*ask, *flags)[0] for flags in ((), ("--api-key", "sesame"))] == [2, 0]
        assert bench.run(*ask, "--api-key-file", bench.folder / "key")[0] == 0


@proves("load", option="--json")
def _(bench: Bench) -> None:
    with ContractServer() as server:
        assert json.loads(bench.run("load", "--url", server.url, "--model", "m", "--json")[1]) == READY


# What a race does ----------------------------------------------------------------------------------------------------


def _races(option: str, text: str, read: Callable[[dict[str, Any]], Any], value: Any) -> None:
    @proves("race", option=option)
    def proof(bench: Bench) -> None:
        assert read(bench.raced("--temperature", "1", option, text)) == value


_races("--arm", "lookup:cap=3", lambda result: result["arms"][1]["resolved"]["cap"], 3)
_races("--prompt", "ab", lambda result: [one["prompt"] for one in result["prompts"]], ["ab"])
_races("--max-tokens", "2", lambda result: result["settings"]["max_tokens"], 2)
_races("--trials", "2", lambda result: len(result["trials"]), 2)
_races("--seed", "5", lambda result: result["settings"]["seed"], 5)
_races("--temperature", "0.5", lambda result: result["settings"]["sampling"]["temperature"], 0.5)
_races("--top-p", "0.5", lambda result: result["settings"]["sampling"]["top_p"], 0.5)
_races("--top-k", "3", lambda result: result["settings"]["sampling"]["top_k"], 3)
_races("--min-p", "0.5", lambda result: result["settings"]["sampling"]["min_p"], 0.5)


@proves("race", option="--prompt-file")
def _(bench: Bench) -> None:
    (bench.folder / "prompts").write_text("ba\n")
    assert bench.raced("--prompt-file", bench.folder / "prompts")["prompts"][0]["prompt"] == "ba"


@proves("race", option="--json")
def _(bench: Bench) -> None:
    code, _ = bench.run(
        *("race", "--model", bench.target, "--drafter", "none", "--arm", "baseline", "--prompt", "ab"),
        *("--max-tokens", "2", "--trials", "1", "--json", bench.folder / "race.json"),
    )
    assert code == 0 and json.loads((bench.folder / "race.json").read_text())["trials"]


@proves("race", option="--markdown")
def _(bench: Bench) -> None:
    bench.raced("--markdown", bench.folder / "race.md")
    assert "tok/s" in (bench.folder / "race.md").read_text()


@proves("race", option="--csv")
def _(bench: Bench) -> None:
    bench.raced("--csv", bench.folder / "race.csv")
    assert (bench.folder / "race.csv").read_text().startswith("date,")


@proves("race", option="--depth")
def _(bench: Bench) -> None:
    # The tiny tokenizer makes nothing of a long text, which is told before anything runs.
    assert bench.run("race", "--model", bench.target, "--drafter", "none", "--depth", "8")[0] == 1
    assert bench.raced("--depth", "0")["prompts"][0]["depth"] == 0


@proves("race", option="--cooldown")
def _(bench: Bench) -> None:
    assert bench.raced("--cooldown", "0.001")["settings"]["cooldown_s"] == 0.001


@proves("race", option="--suite")
def _(bench: Bench) -> None:
    suite = {"models": [{"model": bench.target, "drafter": "none"}], "arms": ["lookup"], "prompts": [{"text": "abc"}]}
    (bench.folder / "suite.yaml").write_text(json.dumps({**suite, "max_tokens": 3, "trials": 1}))
    code, out = bench.run("race", "--suite", bench.folder / "suite.yaml", "--json", "-")
    assert code == 0 and [race["state"] for race in json.loads(out)["races"]] == ["done"]


@proves("race", option="--compare")
@proves("race", option="--fail-below")
def _(bench: Bench) -> None:
    path = bench.folder / "race.json"
    path.write_text(json.dumps(bench.raced("--arm", "lookup")))
    flags = ("--compare", path, path, "--fail-below", "0.9", "--json", "-")
    assert json.loads(bench.run("race", *flags)[1])["fail_below"] == 0.9


# What a server is, and whom it is for --------------------------------------------------------------------------------


def _served(option: str, text: Any, field: str, value: Any, *more: Any) -> None:
    @proves("serve", option=option)
    def proof(bench: Bench) -> None:
        flags = (option,) if text is True else (option, text)
        assert bench.health(*more, *flags)[field] == value
        assert bench.health(*more)[field] != value, "the default is another"


_served("--max-draft", 2, "max_draft", 2)
_served("--confidence-threshold", 0.25, "confidence_threshold", 0.25, "--max-draft", 2)
_served("--context-window", 99, "context_window", 99)
_served("--enable-thinking", True, "thinking_default", True)
_served("--reasoning-effort", "low", "reasoning_effort", "low")
_served("--max-tokens-cap", 9, "max_output_tokens", 9)


@proves("serve", option="--lookup-drafts")
def _(bench: Bench) -> None:
    assert bench.health("--lookup-drafts")["lookup_drafts"] is True
    assert bench.health("--no-lookup-drafts")["lookup_drafts"] is False


@proves("serve", option="--warmup")
def _(bench: Bench) -> None:
    assert bench.health("--warmup")["warmup"] is True
    assert bench.health("--no-warmup")["warmup"] is False


@proves("serve", option="--memory-guard")
def _(bench: Bench) -> None:
    assert bench.asked("serve").memory_guard is True and bench.asked("serve", "--no-memory-guard").memory_guard is False


@proves("serve", option="--no-model")
def _(bench: Bench) -> None:
    assert bench.health("--no-model")["status"] == "no_model"


@proves("serve", option="--host")
def _(bench: Bench) -> None:
    assert (
        bench.serves("--no-model", "--host", "127.0.0.2", told=lambda app, http: app.http.url)[:17]
        == "http://127.0.0.2:"
    )


@proves("serve", option="--port")
def _(bench: Bench) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    assert bench.serves("--no-model", "--port", free, told=lambda app, http: app.http.port) == free


@proves("serve", option="--api-key")
@proves("serve", option="--api-key-file")
def _(bench: Bench) -> None:
    (bench.folder / "key").write_text("sesame\n")

    def opened(app: Any, http: httpx.Client) -> list[int]:
        keys = ({}, {"x-api-key": "sesame"})
        return [http.get("/v1/models", headers=key).status_code for key in keys]

    for flags in (("--api-key", "sesame"), ("--api-key-file", bench.folder / "key")):
        assert bench.serves("--no-model", *flags, told=opened) == [401, 200]
    assert bench.serves("--no-model", told=opened) == [200, 200]


def _default(name: str) -> Callable[[Any, httpx.Client], Any]:
    """What the handlers of generation take where a request says nothing."""

    def told(app: Any, http: httpx.Client) -> Any:
        body = {"prompt": [5, 9], **({} if name == "max_tokens" else {"max_tokens": 1})}
        with pytest.MonkeyPatch.context() as patch:
            seen, generate = [], Engine.generate
            patch.setattr(Engine, "generate", lambda engine, request: seen.append(request) or generate(engine, request))
            assert http.post("/v1/completions", json=body).status_code == 200
        return getattr(seen[0] if name == "max_tokens" else seen[0].sampling, name)

    return told


def _defaults(option: str, text: Any, name: str) -> None:
    @proves("serve", option=option)
    def proof(bench: Bench) -> None:
        own = ("--drafter", "none", "--no-warmup")
        assert bench.serves(*own, option, text, told=_default(name)) == text
        assert bench.serves(*own, told=_default(name)) != text


_defaults("--default-temperature", 0.5, "temperature")
_defaults("--default-top-p", 0.5, "top_p")
_defaults("--default-top-k", 3, "top_k")
_defaults("--default-max-tokens", 4, "max_tokens")


class Started:
    """A client program that says what it was started with."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.told = bench.folder / "told.json"
        program = bench.folder / "claude"
        told = f"open({str(self.told)!r}, 'w')"
        script = f"import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], {told})"
        program.write_text(f"#!{sys.executable}\n{script}\n")
        program.chmod(0o755)
        bench.patch.setenv("PATH", str(bench.folder))

    def by(self, *flags: Any) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment of the client that `launch` with these flags starts."""
        assert self.bench.run("launch", *flags)[0] == 0
        arguments, environment = json.loads(self.told.read_text())
        return arguments, environment


@proves("launch", option="client")
@proves("launch", option="arguments")
@proves("launch", option="--url")
def _(bench: Bench) -> None:
    with ContractServer() as server:
        arguments, environment = Started(bench).by("claude", "--url", server.url, "--", "-p", "hi")
    assert arguments == ["-p", "hi"] and environment["ANTHROPIC_BASE_URL"] == server.url


@proves("launch", option="--host")
@proves("launch", option="--port")
def _(bench: Bench) -> None:
    with ContractServer() as server:
        port = server.url.rpartition(":")[2]
        _, environment = Started(bench).by("claude", "--host", "localhost", "--port", port)
    assert environment["ANTHROPIC_BASE_URL"] == f"http://localhost:{port}"


@proves("launch", option="--api-key")
@proves("launch", option="--api-key-file")
def _(bench: Bench) -> None:
    (bench.folder / "key").write_text("sesame\n")
    with ContractServer(key="sesame") as server:
        for flags in (("--api-key", "sesame"), ("--api-key-file", bench.folder / "key")):
            _, environment = Started(bench).by("claude", "--url", server.url, *flags)
            assert environment["ANTHROPIC_AUTH_TOKEN"] == "sesame"


@proves("launch", option="--print-env")
def _(bench: Bench) -> None:
    with ContractServer() as server:
        code, out = bench.run("launch", "claude", "--url", server.url, "--print-env")
    assert code == 0 and f"export ANTHROPIC_BASE_URL={server.url}" in out.splitlines()


@proves("launch", option="--write-config")
def _(bench: Bench) -> None:
    bench.patch.setenv("HOME", str(bench.folder))
    with ContractServer() as server:
        assert bench.run("launch", "claude", "--url", server.url, "--write-config")[0] == 0
    written = json.loads((bench.folder / ".claude" / "settings.json").read_text())
    assert written["env"]["ANTHROPIC_BASE_URL"] == server.url


# Keys ----------------------------------------------------------------------------------------------------------------


@proves("keys", option="action")
@proves("keys", option="name")
@proves("keys", option="--json")
def _(bench: Bench) -> None:
    made = json.loads(bench.run("keys", "create", "laptop", "--json")[1])
    assert made["name"] == "laptop" and bench.run("keys") == (0, "laptop\n")
    assert json.loads(bench.run("keys", "revoke", "laptop", "--json")[1]) == {"revoked": "laptop"}
    assert json.loads(bench.run("keys", "list", "--json")[1]) == {"keys": []}


# The rest ------------------------------------------------------------------------------------------------------------


@proves("doctor", "machine", option="--json")
def _(bench: Bench, command: str) -> None:
    assert isinstance(json.loads(bench.run(command, "--json")[1]), dict)


def _ceilings(bench: Bench, *flags: str) -> Any:
    """The model's part of what `machine` tells; None where it refuses."""
    bench.patch.setattr(bandwidth, "BUFFER_BYTES", 8 << 20)
    code, out = bench.run("machine", "--model", bench.target, "--json", *flags)
    return json.loads(out)["model"] if code == 0 else None


@proves("machine", option="--model")
def _(bench: Bench) -> None:
    assert _ceilings(bench)["name"] == bench.target


@proves("machine", option="--url")
@proves("machine", option="--api-key")
@proves("machine", option="--api-key-file")
def _(bench: Bench) -> None:
    (bench.folder / "key").write_text("sesame\n")
    with ContractServer(key="sesame") as server:
        for flags, code in (((), 2), (("--api-key", "sesame"), 0), (("--api-key-file", bench.folder / "key"), 0)):
            assert bench.run("machine", "--url", server.url, *flags)[0] == code


@proves("machine", option="--depth")
def _(bench: Bench) -> None:
    assert _ceilings(bench, "--depth", "7")["given"]["depth"] == 7


@proves("machine", option="--kv-bits")
def _(bench: Bench) -> None:
    assert _ceilings(bench, "--kv-bits", "8") is None, "its narrow heads cannot be packed"


@proves("machine", option="--measure")
def _(bench: Bench) -> None:
    assert _ceilings(bench, "--measure")["standing"] is not None
    assert _ceilings(bench)["standing"] is None


@proves("machine", option="--plot")
def _(bench: Bench) -> None:
    bench.patch.setattr(bandwidth, "BUFFER_BYTES", 8 << 20)
    assert "roofline: GFLOP/s" in bench.run("machine", "--model", bench.target, "--plot", "-")[1]


@proves("doctor", option="--redact")
def _(bench: Bench) -> None:
    bench.patch.setenv("HOME", str(bench.folder))
    bench.patch.delenv("MLX_DSPARK_HOME")
    assert str(bench.folder) in bench.run("doctor", "--json")[1]
    assert str(bench.folder) not in bench.run("doctor", "--json", "--redact")[1]


@proves("doctor", option="--models")
def _(bench: Bench) -> None:
    assert "qwen3-14b" in bench.run("doctor", "--models")[1]
    assert "qwen3-14b" not in bench.run("doctor")[1]


@proves("doctor", option="--fix-hints")
def _(bench: Bench) -> None:
    bench.patch.setenv("MLX_DSPARK_TRUST_REMOTE_CODE", "1")
    assert "\nunset MLX_DSPARK_TRUST_REMOTE_CODE\n" in f"\n{bench.run('doctor', '--fix-hints')[1]}"


@proves("", option="--version")
def _(bench: Bench) -> None:
    from dspark import __version__

    assert bench.run("--version") == (0, f"mlx-dspark {__version__}\n")


@proves("", option="--show-config")
def _(bench: Bench) -> None:
    assert "(default)" in bench.run("--show-config")[1]
    assert "lookup  (--mode)" in " ".join(bench.run("--show-config", "load", "--mode", "lookup")[1].split("\n"))


@proves("", option="--json")
def _(bench: Bench) -> None:
    code, out = bench.run("--show-config", "--json", "race", "--kv-bits", "4")
    assert code == 0 and json.loads(out)["model"]["kv_bits"] == {"value": 4, "origin": "flag", "place": "--kv-bits"}
