"""Loading in a running server: phases, cancelling, swaps that fail, what sticks."""

import threading
import weakref

import pytest
from live import served, text_of, write_target
from wires import eventually

from dspark import loading
from dspark import pair as pairs
from dspark.engine import Engine
from dspark.errors import CheckpointError, PromptError
from dspark.hub.plan import Part
from dspark.server.load import Load
from dspark.targets.target import Target

COMPLETIONS = "/v1/completions"
PLAIN = {"drafter": "none", "mode": "baseline"}


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("other") / "other-target", seed=7, head_dim=32)


@pytest.fixture
def running(pair, own_home):
    with served(model=pair[0], warmup=False, **PLAIN) as live:
        yield live


@pytest.fixture
def held(monkeypatch):
    """Holds each load at the phase given, until it is let go."""
    gate = Held()
    check = Load._check

    def checked(load):
        if load.phase == gate.phase:
            gate.reached.set()
            assert gate.go.wait(20)
        check(load)

    monkeypatch.setattr(Load, "_check", checked)
    yield gate
    gate.go.set()


class Held:
    def __init__(self):
        self.phase, self.reached, self.go = None, threading.Event(), threading.Event()


def said(live):
    return text_of(COMPLETIONS, live.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 12}))


def test_a_load_is_accepted_at_once_and_followed_by_its_id(running, other, held):
    held.phase = "loading"
    accepted = running.post("/admin/load", {"model": other, **PLAIN}, status=202)
    assert held.reached.wait(10)
    status, health = running.get("/admin/status"), running.get("/health")
    assert status["loading"] and not status["ready"] and status["load_id"] == accepted["id"] == health["load_id"]
    assert (health["status"], health["phase"], health["model"]) == ("loading", "loading", "other-target")
    refused = running.http.post(COMPLETIONS, json={"prompt": "x"})
    assert refused.status_code == 503 and "being loaded" in refused.json()["error"]["message"]
    held.go.set()
    running.ready()
    assert running.get("/admin/status") == {
        "ready": True,
        "loading": False,
        "phase": None,
        "load_id": None,
        "model": "other-target",
        "error": None,
    }


def test_a_second_load_and_an_unload_are_refused_meanwhile(running, other, held):
    """J8: one at a time."""
    held.phase = "loading"
    running.post("/admin/load", {"model": other, **PLAIN}, status=202)
    assert held.reached.wait(10)
    for route, body in (("/admin/load", {"model": other}), ("/admin/unload", None)):
        refused = running.http.post(route, json=body)
        assert refused.status_code == 409 and refused.json()["error"]["type"] == "conflict_error"


@pytest.mark.parametrize("phase", ["loading", "calibrating", "warming_up"])
def test_a_load_is_called_off_in_each_phase_and_the_old_model_answers(running, other, held, phase):
    before = said(running)
    held.phase = phase
    running.post("/admin/load", {"model": other, "warmup": True, **PLAIN}, status=202)
    assert held.reached.wait(20)
    assert running.get("/health")["phase"] == phase
    assert running.post("/admin/load/cancel")["cancelled"] is True
    held.go.set()
    running.ready()
    status = running.get("/admin/status")
    assert status["ready"] and status["model"] == "tiny-target" and "cancelled" in status["error"]
    assert said(running) == before
    assert running.post("/admin/load/cancel") == {"cancelled": False, "id": None}


def test_a_download_is_seen_and_called_off(running, other, monkeypatch):
    """The bytes are in /health, and cancelling ends it at the next of them."""
    stepping = threading.Event()

    def fetch(part, options, heard):
        for done in range(0, 1000, 10):
            heard(done, 1000)
            stepping.wait(0.02)
        raise AssertionError("the download went on")

    part = Part("target", "org/big", None, 1000, 1000)
    monkeypatch.setattr(loading, "parts_of", lambda options: (part,))
    monkeypatch.setattr(loading, "fetch", fetch)
    running.post("/admin/load", {"model": "org/big", **PLAIN}, status=202)
    assert eventually(lambda: (running.get("/health").get("download") or {}).get("bytes_done"))
    health = running.get("/health")
    assert health["phase"] == "downloading"
    assert health["download"]["repo"] == "org/big" and health["download"]["bytes_total"] == 1000
    assert eventually(lambda: running.get("/health")["download"]["rate"])
    running.post("/admin/load/cancel")
    running.ready()
    assert "what was downloaded is kept" in running.get("/admin/status")["error"]
    assert running.get("/health")["status"] == "ok"


def test_where_both_do_not_fit_the_old_one_goes_first_and_comes_back_on_failure(running, other, monkeypatch):
    held_at_once = []
    load = Engine.load

    def watched(engine, options, **heard):
        held_at_once.append(running.app.loads.current() is not None)
        if options.model == other:
            raise MemoryError("no room")
        return load(engine, options, **heard)

    before = said(running)
    monkeypatch.setattr(Load, "_room_beside", lambda *_: False)
    monkeypatch.setattr(Engine, "load", watched)
    assert running.http.post("/admin/load?wait=true", json={"model": other, **PLAIN}).status_code == 500
    assert held_at_once == [False, False], "the old one was gone before the new one, and again before it came back"
    assert said(running) == before
    assert running.get("/admin/status")["error"] == "no room"


def test_the_weights_of_a_load_that_failed_are_free_before_the_old_model_comes_back(running, other, monkeypatch):
    """An error holds the calls that it came through, and they what they were loading."""
    targets, free = [], []
    real, bring_back = Target.load, Load._bring_back

    def load(*arguments, **options):
        target = real(*arguments, **options)
        targets.append(weakref.ref(target))
        return target

    def watched(self, before):
        free.append(targets[0]() is None)
        bring_back(self, before)

    def refusal(target):
        if len(targets) == 1:
            raise CheckpointError("broken")

    monkeypatch.setattr(Load, "_room_beside", lambda *_: False)
    monkeypatch.setattr(Load, "_bring_back", watched)
    monkeypatch.setattr(Target, "load", load)
    monkeypatch.setattr(pairs, "rollback_refusal", refusal)
    assert running.http.post("/admin/load?wait=true", json={"model": other, **PLAIN}).status_code == 400
    assert free == [True]
    assert said(running)


def test_a_warm_up_that_fails_does_not_fail_the_load(running, other, monkeypatch, caplog):
    """B18: it is told, and leaves no trace in what is counted."""

    def failing(*_):
        raise RuntimeError("cold")

    monkeypatch.setattr(loading, "warm_up", failing)
    running.post("/admin/load?wait=true", {"model": other, "warmup": True, **PLAIN})
    health = running.get("/health")
    assert health["status"] == "ok" and health["warmup"] is False
    assert any("warm-up failed" in warning for warning in health["warnings"])
    assert "cold" in caplog.text


def test_a_warm_up_that_the_template_refuses_is_told_in_one_line(running, other, monkeypatch, caplog):
    def refused(*_):
        raise PromptError("the template is broken")

    monkeypatch.setattr(loading, "warm_up", refused)
    running.post("/admin/load?wait=true", {"model": other, "warmup": True, **PLAIN})
    told = next(record for record in caplog.records if "warm-up failed" in record.message)
    assert "the template is broken" in told.message and not (told.exc_info and told.exc_info[0])


def test_a_warm_up_leaves_no_trace(pair, own_home):
    """B18: nothing of it is in the counters, the rounds or the events."""
    with served(model=pair[0], drafter=pair[1], max_draft=3) as live:
        assert live.get("/health")["warmup"] is True
        told = live.get("/metrics")
        assert sum(told["requests"].values()) == 0 and set(told["tokens"].values()) == {0}
        assert live.get("/rounds") == {"rounds": [], "positions": [], "accepted_histogram": {}}


def test_thinking_sticks_across_swaps_and_the_rest_of_a_load_does_not(running, other, pair):
    """P6: sticky settings against those of one load."""
    body = {"enable_thinking": False, "reasoning_effort": "low", "context_window": 512, "kv_bits": 8, **PLAIN}
    running.post("/admin/load?wait=true", {"model": other, **body})
    health = running.get("/health")
    assert (health["context_window"], health["kv_bits"]) == (512, 8)
    assert (health["thinking_default"], health["reasoning_effort"]) == (False, "low")
    running.post("/admin/load?wait=true", {"model": pair[0], **PLAIN})
    health = running.get("/health")
    assert (health["context_window"], health["kv_bits"]) == (2048, 0)
    assert (health["thinking_default"], health["reasoning_effort"]) == (False, "low")


def test_what_a_failed_load_wished_of_thinking_does_not_stick(running, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    refused = running.http.post("/admin/load?wait=true", json={"model": str(tmp_path), "reasoning_effort": "high"})
    assert refused.status_code == 400
    assert running.get("/health")["reasoning_effort"] is None


def test_a_window_beyond_the_models_is_not_offered_and_said_so(running, other):
    running.post("/admin/load?wait=true", {"model": other, "context_window": 10**6, **PLAIN})
    health = running.get("/health")
    assert health["context_window"] == 2048
    assert any("2048 tokens are in force" in warning for warning in health["warnings"])


def test_a_window_that_does_not_fit_is_warned_of_with_one_that_does(running, other, monkeypatch):
    """K2: once, and of the window that it was loaded with."""
    from dspark.machine.ceilings import Ceiling
    from dspark.memory.guard import MemoryGuard

    narrow = Ceiling("its free memory", "close other programs", 10**9, 3_500_000, 0)
    monkeypatch.setattr(MemoryGuard, "ceilings", lambda guard: (narrow,))
    running.post("/admin/load?wait=true", {"model": other, **PLAIN})
    (warning,) = [one for one in running.get("/health")["warnings"] if "context" in one]
    assert "a full context of 2048 tokens takes" in warning and "set --context-window 1024" in warning
    running.post("/admin/load?wait=true", {"model": other, "context_window": 1024, **PLAIN})
    assert not [one for one in running.get("/health")["warnings"] if "context" in one]


def test_an_unload_frees_the_model_and_says_how_much_came_back(running):
    assert running.post("/admin/unload")["freed_bytes"] > 100_000
    assert running.get("/health")["status"] == "no_model"
    assert running.post("/admin/unload")["freed_bytes"] == 0


def test_an_unload_waits_for_what_was_accepted_before(running):
    """J8: unload while a request is under way."""
    from live import in_threads

    def ask():
        return running.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 300})

    def unload():
        assert eventually(lambda: running.app.worker.busy)
        return running.post("/admin/unload")

    answer, freed = in_threads(ask, unload)
    assert answer["usage"]["completion_tokens"] == 300 and freed["freed_bytes"] > 0


def test_a_model_that_is_nowhere_is_told_by_its_reason(running, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused = running.http.post("/admin/load?wait=true", json={"model": "org/no-such-model"})
    assert refused.status_code == 404 and "org/no-such-model is not on this disk" in refused.json()["error"]["message"]
    assert running.get("/health")["load_error"]


def test_a_drafter_offered_as_a_model_is_refused(running, pair):
    """L5."""
    refused = running.http.post("/admin/load?wait=true", json={"model": pair[1]})
    assert refused.status_code == 400 and "is a drafter, not a chat model" in refused.json()["error"]["message"]


def test_python_of_a_checkpoint_is_never_run(running, tmp_path):
    """O3, X10."""
    trace = tmp_path / "touched"
    (tmp_path / "evil.py").write_text(f"open({str(trace)!r}, 'w')")
    (tmp_path / "config.json").write_text(
        '{"model_type": "qwen3", "text_config": {"auto_map": {"AutoModel": "evil.M"}}, "model_file": "evil.py"}'
    )
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    refused = running.http.post("/admin/load?wait=true", json={"model": str(tmp_path), "trust_remote_code": True})
    assert refused.status_code == 400 and "auto_map" in refused.json()["error"]["message"]
    assert not trace.exists()


@pytest.mark.parametrize("model", ["../../x", "file:///etc", "~root"])
def test_paths_that_lead_elsewhere_are_refused(running, model):
    """O4."""
    refused = running.http.post("/admin/load", json={"model": model})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "model"
    refused = running.http.post("/admin/load", json={"model": "org/m", "drafter": model})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "drafter"


def test_the_events_of_a_model_end_with_it(running, other):
    ended = threading.Event()

    def listen():
        with running.http.stream("GET", "/events") as response:
            for _ in response.iter_lines():
                pass
        ended.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert eventually(lambda: running.app.telemetry._readers)
    running.post("/admin/load?wait=true", {"model": other, **PLAIN})
    assert ended.wait(10)
