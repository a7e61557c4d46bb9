"""What goes wrong while a whole server works: clients that leave, defects, deaths, swaps, signals."""

import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest
from live import GENERATION, Blocking, body_for, events, in_threads, served, streamed_text, text_of, write_target
from wires import eventually

CHAT, COMPLETIONS, MESSAGES, RESPONSES = GENERATION
LONG = 16384


@pytest.fixture(scope="module")
def long_target(tmp_path_factory):
    """A target with room for prompts of several chunks."""
    return write_target(tmp_path_factory.mktemp("long") / "target", max_position_embeddings=LONG)


@pytest.fixture(scope="module")
def plain(long_target, own_home):
    """A server with it, decoding plainly."""
    with served(model=long_target, drafter="none", mode="baseline") as running:
        yield running


def asked(live, path, body, request_id="req-gone"):
    """A socket on which a request was sent and nothing was read."""
    address = urlsplit(live.url)
    peer = socket.create_connection((address.hostname, address.port), timeout=30)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nx-request-id: {request_id}\r\n"
    peer.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return peer


class Listener:
    """Reads /events in a thread."""

    def __init__(self, live):
        self.seen = []
        self._live = live
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def _read(self):
        with suppress(httpx.HTTPError), self._live.http.stream("GET", "/events") as response:
            self._ready.set()
            for _, event in events(response):
                self.seen.append(event)

    def of(self, request_id):
        return [event for event in self.seen if event["req"] == request_id]


def outcomes(live):
    return live.app.telemetry.counters()["requests"]


def still_answers(live, path=CHAT):
    return live.post(path, body_for(path, "Are you well?", max_tokens=4))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_gone_in_the_second_chunk_of_its_prompt_stops_the_reading(plain, stream):
    """J3 (b), C9: at the next chunk, with the progress cleared, and the next request is fine."""
    before = outcomes(plain)["cancelled"]
    listener = Listener(plain)
    id_ = f"req-prefill-{stream}"
    peer = asked(plain, COMPLETIONS, {"prompt": "abc" * 3000, "max_tokens": 50, "stream": stream}, id_)
    assert eventually(lambda: any(event["processed"] >= 2048 for event in listener.of(id_)), 30)
    peer.close()
    assert eventually(lambda: outcomes(plain)["cancelled"] == before + 1, 60)
    assert eventually(lambda: listener.of(id_)[-1].get("done"))
    last = listener.of(id_)[-1]
    assert last["processed"] < last["total"] == 9000
    still_answers(plain)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_gone_before_the_first_byte_of_its_answer(plain, stream, caplog):
    """J3 (b), (d): whatever was begun for it is cut, and nothing is broken by it."""
    caplog.set_level(logging.INFO)
    completed, id_ = outcomes(plain)["completed"], f"req-unread-{stream}"
    asked(plain, COMPLETIONS, {"prompt": "abc", "max_tokens": 9000, "stream": stream}, id_).close()
    assert eventually(lambda: id_ in caplog.text, 20), "the log has no line of it"
    assert eventually(lambda: not plain.app.worker.busy and plain.app.worker.waiting == 0, 10)
    assert outcomes(plain)["completed"] == completed
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    still_answers(plain)


def test_a_storm_of_clients_that_leave_at_any_time_leaves_nothing_behind(live, caplog):
    """J5: each is cut at a round border, and what was cached stays right."""
    ask = {"prompt": "storm " * 20, "max_tokens": 24}
    before = text_of(COMPLETIONS, live.post(COMPLETIONS, ask))
    chance = random.Random(5)
    for at in range(30):
        body = {**ask, "prompt": ask["prompt"][: chance.randrange(1, 120)], "max_tokens": 500, "stream": at % 2 == 0}
        peer = asked(live, COMPLETIONS, body, f"req-storm-{at}")
        time.sleep(chance.random() * 0.05)
        peer.close()
    assert eventually(lambda: not live.app.worker.busy and live.app.worker.waiting == 0, 20)
    assert text_of(COMPLETIONS, live.post(COMPLETIONS, ask)) == before
    assert live.get("/health")["status"] == "ok"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_nothing_but_generation_waits_for_the_engine(plain):
    """E16, F12: status, the listing and the counting of tokens answer while a long step runs."""
    gate = Blocking()
    plain.app.worker.submit(gate)
    assert eventually(lambda: plain.app.worker.busy)
    try:
        for route in ("health", "metrics", "machine", "calibration", "rounds", "models", "models/target"):
            plain.get(f"/v1/{route}")
        for route in ("status", "models", "integrations"):
            plain.get(f"/admin/{route}")
        assert plain.post(f"{MESSAGES}/count_tokens", body_for(MESSAGES, "hi"))["input_tokens"] > 2
        assert plain.get("/health")["busy"] is True
    finally:
        gate.release.set()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_gone_while_it_is_answered_stops_the_answer(plain, stream):
    """J3 (c), (d): within a second, streamed or not."""
    before = outcomes(plain)["cancelled"]
    listener = Listener(plain)
    id_ = f"req-decode-{stream}"
    peer = asked(plain, COMPLETIONS, {"prompt": "abc", "max_tokens": 9000, "stream": stream}, id_)
    assert eventually(lambda: sum("i" in event for event in listener.of(id_)) > 3, 20)
    peer.close()
    assert eventually(lambda: outcomes(plain)["cancelled"] == before + 1, 10)
    assert sum("i" in event for event in listener.of(id_)) < 8000
    still_answers(plain)


def test_a_client_gone_before_its_turn_is_never_decoded(plain):
    """J3 (a), J6: and its place in the queue is free within a second."""
    listener = Listener(plain)
    busy = asked(plain, COMPLETIONS, {"prompt": "abc", "max_tokens": 9000}, "req-busy")
    assert eventually(lambda: plain.app.worker.busy)
    peers = [asked(plain, CHAT, body_for(CHAT, "x", stream=at % 2 == 0), f"req-queued-{at}") for at in range(4)]
    assert eventually(lambda: plain.app.worker.waiting == 4)
    for peer in peers:
        peer.close()
    assert eventually(lambda: plain.app.worker.waiting == 0, 5)
    busy.close()
    still_answers(plain)
    assert not [event for at in range(4) for event in listener.of(f"req-queued-{at}")]


def fail_after(live, rounds):
    """Have the target fail once after so many forwards."""
    target = live.app.loads.serving.engine._pair.target
    forward, left = target.forward, [rounds]

    def failing(*arguments):
        left[0] -= 1
        if left[0] < 0:
            del target.forward
            raise RuntimeError("secret detail")
        return forward(*arguments)

    target.forward = failing


@pytest.mark.parametrize("path", GENERATION)
def test_a_defect_in_the_middle_of_a_stream_is_told_in_the_stream(plain, path, caplog):
    """D9, J2: token 5 fails. An error in the dialect, a proper end, no detail of it, and the next request is fine."""
    fail_after(plain, 6)
    frames = plain.stream(path, body_for(path, "A prompt that none of it was read of before", max_tokens=40))
    told = json.dumps(frames)
    assert "internal error" in told and "secret" not in told
    last = frames[-1]
    if path == MESSAGES:
        assert [name for name, _ in frames[-2:]] == ["error", "message_stop"]
    elif path == RESPONSES:
        assert last[0] == "response.failed" and last[1]["response"]["status"] == "failed"
    else:
        assert last[1] == "[DONE]" and frames[-2][1]["error"]["type"] == "api_error"
    assert "secret detail" in caplog.text
    assert [event["i"] for event in plain.get("/rounds?limit=4")["rounds"]] == [0, 1, 2, 3]
    still_answers(plain, path)
    health = plain.get("/health")
    assert health["last_error"] == "RuntimeError" and health["seconds_since_progress"] < 60


def test_a_defect_without_a_stream_is_a_500(plain):
    fail_after(plain, 6)
    failed = plain.http.post(CHAT, json=body_for(CHAT, "abc", max_tokens=40))
    assert failed.status_code == 500 and failed.json()["error"]["type"] == "api_error"
    assert "secret" not in failed.text
    still_answers(plain)


def test_a_dead_worker_is_never_called_well(pair, own_home, caplog):
    """J2: 503 at /health, a reason in the log, an answer for everyone."""

    class Killer:
        def run(self):
            raise SystemExit("killed")

        def fail(self, error):
            pass

        def cancel(self):
            pass

    with served(model=pair[0], drafter="none") as live:
        live.app.worker.submit(Killer())
        assert eventually(lambda: live.http.get("/health").status_code == 503)
        health = live.http.get("/health").json()
        assert health["status"] == "broken" and "killed" in health["error"]
        assert "dspark-worker died" in caplog.text
        refused = live.http.post(CHAT, json=body_for(CHAT, "x"))
        assert refused.status_code == 503 and "start the server again" in refused.json()["error"]["message"]
        assert live.http.post("/admin/load", json={"model": pair[0]}).status_code == 503
        live.get("/metrics")


def test_many_connections_each_get_their_own_answer_and_their_turn(live):
    """C14, J: 64 connections, 8 of them generating: no foreign text, and status for all others."""
    prompts = [f"{at} MARKER {at}" * (at + 1) for at in range(8)]
    alone = [text_of(CHAT, live.post(CHAT, body_for(CHAT, prompt, max_tokens=48))) for prompt in prompts]
    assert len(set(alone)) == 8

    def generate(at):
        path = CHAT
        return streamed_text(path, live.stream(path, body_for(path, prompts[at], max_tokens=48)))

    def look(at):
        route = ("/health", "/metrics", "/rounds", "/admin/status")[at % 4]
        for _ in range(5):
            live.get(route)

    live.http.close()
    live.http = httpx.Client(base_url=live.url, timeout=60, trust_env=False, limits=httpx.Limits(max_connections=64))
    found = in_threads(*(lambda at=at: generate(at) if at < 8 else look(at) for at in range(64)))
    assert found[:8] == alone


def test_requests_are_answered_in_the_order_in_which_they_came(plain):
    listener = Listener(plain)
    busy = asked(plain, COMPLETIONS, {"prompt": "abc", "max_tokens": 9000}, "req-first")
    assert eventually(lambda: plain.app.worker.busy)
    peers = []
    for at in range(5):
        peers.append(asked(plain, COMPLETIONS, {"prompt": "abc", "max_tokens": 2}, f"req-order-{at}"))
        assert eventually(lambda at=at: plain.app.worker.waiting == at + 1)
    busy.close()
    for peer in peers:
        assert b"200 OK" in peer.recv(100)
        peer.close()
    begun = dict.fromkeys(event["req"] for event in listener.seen if "order" in event["req"])
    assert list(begun) == [f"req-order-{at}" for at in range(5)]


def test_a_stop_cuts_a_stream_at_a_round_and_ends_it_properly(long_target, own_home):
    with served(model=long_target, drafter="none", mode="baseline") as live:
        with live.http.stream("POST", CHAT, json=body_for(CHAT, "abc", max_tokens=9000, stream=True)) as response:
            frames = events(response)
            seen = [next(frames) for _ in range(5)]
            stopping = threading.Thread(target=live.app.stop, args=(0.2,))
            stopping.start()
            seen += list(frames)
            stopping.join(20)
        assert seen[-1][1] == "[DONE]" and len(seen) < 9000
        assert seen[-2][1]["choices"][0]["finish_reason"] == "length"
        assert not live.app.worker.alive


def serve(*flags, home):
    """`mlx-dspark serve` as a process of its own, with the address it printed."""
    main = "from dspark.commands.entry import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", main, "serve", "--port", "0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MLX_DSPARK_HOME": str(home)},
    )
    return process, process.stdout.readline().split()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_in_order_and_the_stream_with_it(pair, tmp_path, number):
    """J9: exit 0, the stream has its end."""
    process, url = serve("--model", pair[0], "--drafter", "none", "--mode", "baseline", home=tmp_path)
    try:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            assert eventually(lambda: http.get("/health").json()["status"] == "ok", 60)
            with http.stream("POST", CHAT, json=body_for(CHAT, "abc", max_tokens=400, stream=True)) as response:
                frames = events(response)
                next(frames)
                process.send_signal(number)
                assert list(frames)[-1][1] == "[DONE]"
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_broken_folder_leaves_the_server_and_its_model_up(live, tmp_path):
    """J8: the reason is told, and the old model answers as before."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "llama"}')
    (broken / "model.safetensors").write_bytes(b"no tensors")
    before = text_of(CHAT, still_answers(live))
    refused = live.http.post("/admin/load", params={"wait": "true"}, json={"model": str(broken)})
    assert refused.status_code == 400 and "safetensors" in refused.json()["error"]["message"]
    status = live.get("/admin/status")
    assert status["ready"] and status["model"] == "tiny-target" and "safetensors" in status["error"]
    assert text_of(CHAT, still_answers(live)) == before
    assert live.get("/health")["status"] == "ok"


def test_a_swap_under_load_loses_no_answer(pair, tmp_path, own_home):
    """J8: each request gets its whole answer of one of both models, or a 503 that says when to come back."""
    other = write_target(tmp_path / "other-target", seed=7)
    with served(model=pair[0], drafter="none", mode="baseline") as live:
        ask = {"prompt": "abc", "max_tokens": 24}
        first = text_of(COMPLETIONS, live.post(COMPLETIONS, ask))
        answers, stop = [], threading.Event()

        def ask_on():
            while not stop.is_set():
                answers.append(live.http.post(COMPLETIONS, json=ask))

        askers = [threading.Thread(target=ask_on) for _ in range(4)]
        for asker in askers:
            asker.start()
        assert eventually(lambda: len(answers) > 8)
        live.post("/admin/load?wait=true", {"model": other, "drafter": "none", "mode": "baseline"})
        seen = len(answers)
        assert eventually(lambda: len(answers) > seen + 8)
        stop.set()
        for asker in askers:
            asker.join(20)
        second = text_of(COMPLETIONS, live.post(COMPLETIONS, ask))
    assert first != second
    told = {"tiny-target": first, "other-target": second}
    for answer in answers:
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) > 0
        else:
            assert text_of(COMPLETIONS, answer.json()) == told[answer.json()["model"]]
    assert {answer.json().get("model") for answer in answers} >= set(told)
