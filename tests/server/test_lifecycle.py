"""Signals, and what they do to requests under way."""

import select
import signal
import subprocess
import sys
import textwrap

import pytest
from wires import Wire, eventually, refuses_connections, request_bytes

from dspark.server.lifecycle import ended_by_signals

SERVER = """
    import sys, time
    from dspark.server.auth import Guard
    from dspark.server.exchange import EventStream, Response
    from dspark.server.lifecycle import ended_by_signals
    from dspark.server.origins import Browsers
    from dspark.server.routing import Route, Router
    from dspark.server.transport import bind

    def stream(request):
        def frames():
            for number in range(int(request.query["frames"])):
                yield b"data: %d\\n\\n" % number
                time.sleep(0.05)
        return EventStream(frames())

    with ended_by_signals() as stop:
        server = bind("127.0.0.1", 0)
        server.start(Router([Route("GET", "/stream", stream, "status")], Guard(browsers=Browsers(loopback=True))))
        print(server.port, flush=True)
        stop.wait()
        server.stop(finish_s=float(sys.argv[1]))
"""


@pytest.fixture
def process():
    started = []

    def start(finish_s):
        command = [sys.executable, "-c", textwrap.dedent(SERVER), str(finish_s)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(child)
        return child, int(child.stdout.readline())

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_stream_finish_and_ends_well(process, number):
    """J9, fault list: SIGTERM during a stream."""
    child, port = process(20)
    with Wire(port) as wire:
        wire.send(request_bytes("GET", "/stream?frames=10"))
        wire.head()
        assert wire.chunk() == b"data: 0\n\n"
        child.send_signal(number)
        last = None
        while chunk := wire.chunk():
            last = chunk
        assert (chunk, last) == (b"", b"data: 9\n\n")
    assert child.wait(20) == 0


def test_a_signal_cuts_a_stream_that_takes_too_long_and_ends_well(process):
    """J9"""
    child, port = process(0)
    with Wire(port) as wire:
        wire.send(request_bytes("GET", "/stream?frames=100000"))
        wire.head()
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0
        assert not wire._chunks()[1]


def test_a_second_signal_ends_at_once(process):
    """J9"""
    child, port = process(1000)
    with Wire(port) as wire:
        wire.send(request_bytes("GET", "/stream?frames=100000"))
        wire.head()
        child.send_signal(signal.SIGTERM)
        assert eventually(lambda: refuses_connections(port))
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == -signal.SIGTERM


def test_who_asks_for_the_end_when_it_is_over_disturbs_nobody():
    """A load that is called off as the server ends comes to its end at any moment."""
    with ended_by_signals() as stop:
        stop.request()
        stop.wait()
    with ended_by_signals() as other:  # has the numbers of the pipe that was closed
        stop.request()
        assert not select.select([other._read_end], [], [], 0)[0]
