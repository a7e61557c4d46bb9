"""Frames, and the silence between them."""

from queue import Empty

import pytest

from dspark.errors import UsageError
from dspark.server.sse import frame, keepalive_seconds, patiently


def test_frames_are_written_as_clients_read_them():
    assert frame({"a": "é\n"}) == 'data: {"a": "é\\n"}\n\n'.encode()
    assert frame({"type": "ping"}, "ping") == b'event: ping\ndata: {"type": "ping"}\n\n'
    assert frame("[DONE]") == b"data: [DONE]\n\n"
    assert frame({"a": "\ud83d"}) == b'data: {"a": "\\ud83d"}\n\n'


class Source:
    """Gives what is listed; a number is that much silence. Keeps the time."""

    def __init__(self, *items):
        self.items = list(items)
        self.now = 0.0

    def clock(self):
        return self.now

    def take(self, timeout_s):
        if not isinstance(self.items[0], float):
            return self.items.pop(0)
        self.now += timeout_s
        self.items[0] -= timeout_s
        if self.items[0] <= 0:
            self.items.pop(0)
        raise Empty


def listen(source, keepalive_s, gone=None):
    return list(patiently(source.take, gone or (lambda: not source.items), keepalive_s, source.clock))


def test_silence_is_filled_every_so_often():
    """D3"""
    assert listen(Source("a", 40.0, "b", 10.0, "c"), 15.0) == ["a", None, None, "b", "c"]
    assert listen(Source(60.0, "a"), 15.0) == [None, None, None, None, "a"]


def test_a_vanished_client_is_noticed_in_silence():
    """J3"""
    source = Source(3600.0)
    assert listen(source, 15.0, gone=lambda: source.now > 1.0) == []
    assert source.now < 2.0


@pytest.mark.parametrize(("text", "seconds"), [("", 15.0), ("2.5", 2.5), ("60", 60.0)])
def test_the_keep_alive_can_be_set(monkeypatch, text, seconds):
    monkeypatch.setenv("MLX_DSPARK_STREAM_KEEPALIVE_S", text)
    assert keepalive_seconds() == seconds


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_a_keep_alive_that_is_no_time_is_refused(monkeypatch, text):
    monkeypatch.setenv("MLX_DSPARK_STREAM_KEEPALIVE_S", text)
    with pytest.raises(UsageError, match="MLX_DSPARK_STREAM_KEEPALIVE_S"):
        keepalive_seconds()
