"""What a server tells of itself, over HTTP."""

import re
import threading

import pytest
from live import GENERATION, Blocking, body_for, events, served
from wires import Wire, eventually, request_bytes

from dspark.doctor import Report
from dspark.machine.arithmetic import Arithmetic
from dspark.machine.bandwidth import Bandwidth
from dspark.machine.capability import Capability
from dspark.machine.watch import Conditions

CHAT, COMPLETIONS, MESSAGES, RESPONSES = GENERATION
NOT_YET = ("small_m", "multirow_attn", "cpu_split")


def test_health_has_every_field_of_the_contract_and_guesses_none(live):
    health = live.get("/health")
    told = {name: health[name] for name in ("status", "model", "mode", "target", "drafter", "max_draft", "kv_bits")}
    assert told == {
        "status": "ok",
        "model": "tiny-target",
        "target": "tiny-target",
        "drafter": "tiny-head",
        "mode": "dspark",
        "max_draft": 3,
        "kv_bits": 0,
    }
    assert (health["context_window"], health["max_output_tokens"]) == (2048, 2047)
    assert (health["lookup_drafts"], health["confidence_threshold"], health["warmup"]) == (True, 0.0, True)
    assert [health[name] for name in NOT_YET] == [None] * len(NOT_YET) and health["memory_guard"] is True
    assert health["sdpa_split"] is False, "tried on Metal alone"
    assert health["supports_reasoning_effort"] is False and isinstance(health["warnings"], list)


def test_no_path_of_this_machine_is_told_to_everyone(live, pair):
    """/health needs no key."""
    assert pair[0] not in live.http.get("/health").text and "/" not in live.get("/health")["drafter"]


def test_metrics_add_up_with_what_the_answers_said(pair, own_home):
    """Each token counted once, in every dialect, streamed or not, stopped or cut."""
    with served(model=pair[0], drafter=pair[1], mode="dspark", max_draft=3) as live:
        answers = [live.post(COMPLETIONS, {"prompt": "abc", "max_tokens": n})["x_mlx_dspark"] for n in (1, 7, 30)]
        answers.append(live.post(MESSAGES, body_for(MESSAGES, "hi", max_tokens=9))["x_mlx_dspark"])
        frames = live.stream(CHAT, body_for(CHAT, "hi", max_tokens=9))
        answers += [data["x_mlx_dspark"] for _, data in frames if "x_mlx_dspark" in data]
        told, rounds = live.get("/metrics"), live.get("/rounds?limit=4096")
        assert told["requests"] == {"completed": 5, "cancelled": 0, "failed": 0, "withdrawn": 0}
        for kind, field in (("prompt", "prompt_tokens"), ("completion", "completion_tokens")):
            assert told["tokens"][kind] == sum(one[field] for one in answers)
        assert told["target_forwards"] == sum(one["target_forwards"] for one in answers)
        assert sum(one["committed"] for one in rounds["rounds"]) == told["tokens"]["completion"]
        assert sum(one["accepted"] for one in rounds["positions"]) == told["tokens"]["accepted"]
        first = [one for one in rounds["rounds"] if one["i"] == 0]
        assert sum(told["rounds"].values()) == len(rounds["rounds"]) - len(first) and len(first) == 5
        assert told["memory"]["active_bytes"] > 0 and told["queue"] == {"waiting": 0, "running": 0, "limit": 64}
        prefix = told["prefix_cache"]
        assert prefix["hits"] + prefix["partials"] + prefix["misses"] == 5
        assert prefix["reused_tokens"] == told["tokens"]["cached"] == sum(one["cached_tokens"] for one in answers)
        assert prefix["reused_tokens"] + prefix["read_tokens"] == told["tokens"]["prompt"]


def test_who_leaves_before_his_turn_is_counted_too(pair, own_home):
    """J6: everyone who was accepted is in one of the counters."""
    with served(model=pair[0], drafter="none", warmup=False) as live:
        gate = Blocking()
        live.app.worker.submit(gate)
        with Wire(live.app.http.port) as wire:
            wire.send(request_bytes("POST", COMPLETIONS, b'{"prompt": "abc"}'))
            assert eventually(lambda: live.app.worker.waiting == 1)
        assert eventually(lambda: live.get("/metrics")["requests"]["withdrawn"] == 1)
        gate.release.set()
        live.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 1})
        assert live.get("/metrics")["requests"] == {"completed": 1, "cancelled": 0, "failed": 0, "withdrawn": 1}


@pytest.mark.parametrize(
    "ask", [{"params": {"format": "prometheus"}}, {"headers": {"accept": "text/plain;version=0.0.4"}}]
)
def test_metrics_in_the_text_format(live, ask):
    live.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 3})
    response = live.http.get("/metrics", **ask)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    sample = re.compile(r'mlx_dspark_[a-z_]+(\{[a-z]+="[a-z]+"\})? -?[0-9.e+-]+')
    lines = response.text.splitlines()
    assert lines and all(line.startswith("# ") or sample.fullmatch(line) for line in lines)
    value = next(float(line.split()[-1]) for line in lines if line.startswith('mlx_dspark_tokens_total{kind="comp'))
    told = live.get("/metrics")
    assert value == told["tokens"]["completion"]
    prefix, guard = told["prefix_cache"], told["memory_guard"]
    for sample in (
        f'prefix_cache_lookups_total{{outcome="hit"}} {prefix["hits"]}',
        f'prefix_cache_lookups_total{{outcome="miss"}} {prefix["misses"]}',
        f"prefix_cache_bytes {prefix['bytes']}",
        f"prefix_cache_last_shared_tokens {prefix['last']['shared_tokens']}",
        f"memory_guard_refused_total {guard['refused']}",
        f'memory_guard{{state="on"}} {int(guard["state"] == "on")}',
    ):
        assert f"mlx_dspark_{sample}" in lines


def test_metrics_without_a_model_have_neither_cache_nor_guard(own_home):
    with served(load=False) as live:
        told = live.get("/metrics")
        assert told["prefix_cache"] is None and told["memory_guard"] is None and told["memory"] is None
        assert "prefix_cache" not in live.get_text("/metrics?format=prometheus")


def test_where_a_turn_parted_from_what_was_kept_is_told(live):
    """C15, C18: why was this turn slow."""
    kept = "The same beginning of a conversation, "
    live.post(COMPLETIONS, {"prompt": f"{kept}one and so on", "max_tokens": 2})
    answer = live.post(COMPLETIONS, {"prompt": f"{kept}two", "max_tokens": 2})["x_mlx_dspark"]
    last = live.get("/metrics")["prefix_cache"]["last"]
    assert last["prompt_tokens"] == answer["prompt_tokens"] and last["cached_tokens"] == answer["cached_tokens"] > 0
    assert last["shared_tokens"] == answer["prompt_tokens"] - 3


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_guard_refuses_has_a_status_and_is_counted(live, monkeypatch, stream):
    """Contract section 2: 507, naming what is needed, what binds and what to do, and never in a stream."""
    from dspark.machine.ceilings import Ceiling
    from dspark.memory.guard import MemoryGuard

    before = live.get("/metrics")
    full = Ceiling("the limit of this test", "close other programs", 10**9, 1000, 0)
    monkeypatch.setattr(MemoryGuard, "ceilings", lambda guard: (full,))
    refused = live.http.post(COMPLETIONS, json={"prompt": f"{stream} " * 100, "max_tokens": 1, "stream": stream})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (507, "insufficient_memory", "api_error")
    assert "the limit of this test" in error["message"] and "close other programs" in error["message"]
    after = live.get("/metrics")
    assert after["memory_guard"]["refused"] == before["memory_guard"]["refused"] + 1
    assert after["memory_guard"]["binds"] == "the limit of this test"
    assert after["requests"]["failed"] == before["requests"]["failed"] + 1


def test_the_guard_can_be_switched_off_and_stays_off(pair, own_home):
    """K5: visible, for a load and for all."""
    with served(model=pair[0], drafter="none", memory_guard=False, warmup=False) as live:
        assert live.get("/health")["memory_guard"] is False
        assert live.get("/metrics")["memory_guard"]["state"] == "off"
        live.post("/admin/load?wait=true", {"model": pair[0], "drafter": "none"})
        assert live.get("/health")["memory_guard"] is False
        live.post("/admin/load?wait=true", {"model": pair[0], "drafter": "none", "memory_guard": True})
        assert live.get("/health")["memory_guard"] is True


def test_an_unknown_format_is_refused(live):
    assert live.http.get("/metrics?format=xml").json()["error"]["param"] == "format"


@pytest.mark.parametrize("limit", ["-1", "x", "1.5", "99999999999", ""])
def test_a_limit_that_is_none_is_refused(live, limit):
    refused = live.http.get("/rounds", params={"limit": limit})
    assert refused.status_code == 422 and refused.json()["error"]["param"] == "limit"


def test_the_latest_rounds_are_the_ones_that_are_kept(live):
    live.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 30}, headers={"x-request-id": "req-last"})
    rounds = live.get("/rounds?limit=2")["rounds"]
    assert [one["req"] for one in rounds] == ["req-last"] * 2 and rounds[0]["i"] + 1 == rounds[1]["i"]
    assert set(rounds[0]) == {"req", "i", "drafted", "accepted", "committed", "cap", "source", "ms", "context"}
    assert live.get("/rounds?limit=0")["rounds"] == []


def test_events_tell_of_the_prompt_and_of_every_round(live):
    """D11: from the first token of the prompt that is read to a last event that is done."""
    seen, ready = [], threading.Event()

    def listen():
        with live.http.stream("GET", "/events") as response:
            ready.set()
            for _, event in events(response):
                seen.append(event)
                if event.get("i") == 3:
                    return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert ready.wait(10)
    told = live.post(COMPLETIONS, {"prompt": "abcabc", "max_tokens": 30}, headers={"x-request-id": "req-told"})
    thread.join(10)
    cached = told["x_mlx_dspark"]["cached_tokens"] or 0
    prefill = [event for event in seen if event.get("type") == "prefill"]
    assert {event["req"] for event in seen} == {"req-told"}
    assert (prefill[0]["processed"], prefill[0]["total"], prefill[0]["mode"]) == (cached, 6, "dspark")
    assert [event.get("done", False) for event in prefill][-1] is True and sum(e.get("done", 0) for e in prefill) == 1
    assert all("type" not in event for event in seen if "i" in event)


def test_readers_that_do_not_read_cost_the_answers_nothing(live):
    """D12."""
    import socket
    from urllib.parse import urlsplit

    address = urlsplit(live.url)
    peers = []
    for _ in range(3):
        peer = socket.create_connection((address.hostname, address.port))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.sendall(f"GET /events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        peers.append(peer)
    assert eventually(lambda: len(live.app.telemetry._readers) >= 3)
    answer = live.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 1500})
    assert answer["usage"]["completion_tokens"] == 1500
    for peer in peers:
        peer.close()
    assert eventually(lambda: not live.app.telemetry._readers)


def test_the_events_end_with_the_server(own_home):
    """Who listens would keep it from its end for as long as answers under way may take."""
    with served(load=False) as live, live.http.stream("GET", "/events") as response:
        assert live.app.stop(finish_s=20.0)
        assert list(events(response)) == []


def measured(live, gb_s):
    """As if the machine had been measured to move so much."""
    machine = live.app.hardware.machine()
    bandwidth = Bandwidth(gb_s, "as told by the test", "measured")
    live.app.hardware._measured = Capability(machine, bandwidth, None, Arithmetic(1.0, "told"), Conditions())


def test_a_ceiling_is_the_bandwidth_over_what_a_token_reads(pair, own_home):
    with served(model=pair[0], drafter="none") as live:
        unknown = live.get("/machine")
        assert unknown["bandwidth"] is None and "not known" in unknown["verdict"]
        measured(live, 0.001)
        figures = live.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 30})["x_mlx_dspark"]
        told = live.get("/machine")
        traffic = live.app.loads.serving.traffic
        ceiling = 0.001e9 / traffic.bytes_per_token(figures["context_tokens"])
        assert figures["ceiling_tokens_per_sec"] == pytest.approx(ceiling)
        assert figures["roofline_ratio"] == pytest.approx(figures["decode_tokens_per_sec"] / ceiling)
        assert told["model"]["given"]["depth"] == 33 and told["model"]["window"]["depth"] == 2048
        assert told["model"]["start"]["tokens_per_s"] > told["model"]["given"]["tokens_per_s"]
        assert live.get("/metrics")["roofline"]["roofline_ratio"] == figures["roofline_ratio"]


def test_the_machine_is_told_without_a_model(own_home):
    with served(load=False) as live:
        told = live.get("/machine")
        assert told["model"] is None and "no model" in told["verdict"] and told["memory"]["total_bytes"] > 0


def test_the_calibration_in_force_or_none(pair, own_home):
    with served(model=pair[0], drafter=pair[1]) as live:
        told = live.get("/calibration")
        assert told["model"] == "tiny-target" and told["profile"] is None and told["source"] == "measured at load"
        assert told["costs"]["verify"] and told["cap"] == "auto"
    with served(load=False) as live:
        assert live.get("/calibration")["costs"] is None


def test_the_doctors_report_is_the_one_of_the_command(live, monkeypatch):
    asked = []
    report = Report(True, "1", "today", (), ())
    monkeypatch.setattr("dspark.doctor.examine", lambda address: asked.append(address) or report)
    assert live.get("/doctor") == {**report.as_dict(), "checks": [], "models": []}
    assert asked[0].port == live.app.http.port


def test_the_document_describes_every_route_by_the_types_that_validate(live):
    document = live.get("/openapi.json")
    served_paths = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert len(served_paths) == len(live.app._router._routes)
    assert ("post", "/v1/chat/completions") in served_paths and ("get", "/health") in served_paths
    schemas = document["components"]["schemas"]
    body = document["paths"]["/admin/load"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    load = schemas[body.rpartition("/")[2]]
    assert load["required"] == ["model"] and {"kv_bits", "cpu_split", "reasoning_effort"} <= set(load["properties"])
    refs = set(re.findall(r'"#/components/schemas/([^"]+)"', live.http.get("/openapi.json").text))
    assert refs <= set(schemas)


def test_memory_pressure_is_among_the_warnings(live, monkeypatch):
    from dataclasses import replace

    memory = live.app.hardware.memory()
    monkeypatch.setattr(live.app.hardware, "memory", lambda: replace(memory, pressure="critical"))
    assert any("memory pressure is critical" in warning for warning in live.get("/health")["warnings"])


def test_what_the_system_does_not_tell_is_null(live, monkeypatch):
    """K8, N9: and the guard says that it does not know."""
    from dspark.machine.facts import Memory
    from dspark.machine.platform import Unknown

    monkeypatch.setattr(live.app.hardware, "memory", Memory)
    monkeypatch.setattr(live.app.loads.serving.engine._guard, "_here", Unknown())
    told = live.get("/metrics")
    assert set(told["system"].values()) == {None}
    guard = told["memory_guard"]
    assert (guard["state"], guard["pressure"], guard["binds"], guard["room_bytes"]) == ("unknown", None, None, None)
    assert live.get("/health")["status"] == "ok"
    assert 'mlx_dspark_memory_guard{state="unknown"} 1' in live.get_text("/metrics?format=prometheus")
    assert live.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1})["x_mlx_dspark"]["swap_delta_bytes"] is None


def test_figures_that_cannot_be_known_are_null_and_never_infinite(live):
    """N9: one token has no decode rate, and a swap that shrinks did not grow."""
    figures = live.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1})["x_mlx_dspark"]
    assert [figures[name] for name in ("decode_tokens_per_sec", "accept_len", "decay_ratio", "roofline_ratio")] == [
        None
    ] * 4
