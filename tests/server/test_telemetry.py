from contextlib import ExitStack
from queue import Empty

import pytest

from dspark.decoding.events import Finished, PrefillProgress, RoundCommitted, Statistics
from dspark.errors import Overloaded
from dspark.server.telemetry import EVENTS_KEPT, READERS_LIMIT, Telemetry


def statistics(**changed):
    told = {
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "completion_tokens": 4,
        "target_forwards": 3,
        "prefill_seconds": 1.0,
        "decode_seconds": 2.0,
        "total_seconds": 3.0,
        "rounds": 2,
        "drafter_rounds": 1,
        "lookup_rounds": 0,
        "plain_rounds": 1,
        "drafted": 3,
        "accepted": 2,
        "emitted": 4,
        "offered_at": (1, 1, 1),
        "accepted_at": (1, 1, 0),
    }
    return Statistics(**{**told, **changed})


def round_of(index=1, drafted=3, accepted=2, ms=1.0):
    return RoundCommitted(index, "drafter", drafted, accepted, (1, 2, 3), 3, ms, 20)


def drained(reader):
    found = []
    try:
        while (event := reader.take(0)) is not None:
            found.append(event)
    except Empty:
        pass
    return found


def test_a_round_is_told_as_the_contract_has_it():
    telemetry = Telemetry()
    with telemetry.reading() as reader, telemetry.watched("r1", "dspark", 10) as watch:
        watch.hear(round_of())
        assert drained(reader) == [
            {"req": "r1", "i": 1, "drafted": 3, "accepted": 2, "committed": 3, "cap": 3, "source": "drafter", "ms": 1.0,
             "context": 20}
        ]  # fmt: skip


@pytest.mark.parametrize("way_out", ["finished", "cancelled in prefill", "raised"])
def test_prefill_progress_ends_once_on_every_way_out(way_out):
    """D11: a progress display always clears."""
    telemetry = Telemetry()
    with telemetry.reading() as reader:
        try:
            with telemetry.watched("r1", "dspark", 10) as watch:
                watch.hear(PrefillProgress(4, 10))
                if way_out == "raised":
                    raise RuntimeError
                watch.hear(PrefillProgress(10 if way_out == "finished" else 4, 10, done=True))
        except RuntimeError:
            pass
        told = drained(reader)
    assert [event.get("done", False) for event in told] == [False, True]
    assert told[0]["processed"] == 4 and told[-1]["processed"] == (10 if way_out == "finished" else 4)


def test_a_reader_that_does_not_read_loses_events_and_holds_nobody_up():
    """D12: the fan-out is bounded."""
    telemetry = Telemetry()
    with telemetry.reading() as reader:
        for at in range(EVENTS_KEPT + 100):
            telemetry.tell({"i": at})
        assert [event["i"] for event in drained(reader)] == list(range(EVENTS_KEPT))


def test_the_stream_of_events_ends_with_the_model():
    telemetry = Telemetry()
    with telemetry.reading() as reader:
        telemetry.tell({"i": 1})
        telemetry.hang_up()
        assert reader.take(0) == {"i": 1}
        assert reader.take(0) is None


def test_counters_add_up_over_generations():
    telemetry = Telemetry()
    for reason in ("stop", "cancelled"):
        with telemetry.watched("r", "dspark", 10) as watch:
            watch.finish(Finished(reason, (1,), "a", statistics()))
    with pytest.raises(ZeroDivisionError), telemetry.watched("r", "dspark", 10):
        raise ZeroDivisionError
    counted = telemetry.counters()
    assert counted["requests"] == {"completed": 1, "cancelled": 1, "failed": 1, "withdrawn": 0}
    assert counted["tokens"] == {"prompt": 20, "cached": 0, "completion": 8, "drafted": 6, "accepted": 4}
    assert counted["rounds"] == {"drafter": 2, "lookup": 0, "plain": 2}


def test_acceptance_counts_only_positions_that_were_tested():
    """B11: no proposal that was never looked at is in a denominator."""
    telemetry = Telemetry()
    for offered, accepted in (((1, 1, 1), (1, 1, 0)), ((1,), (0,))):
        with telemetry.watched("r", "dspark", 10) as watch:
            watch.finish(Finished("stop", (1,), "a", statistics(offered_at=offered, accepted_at=accepted)))
    positions = telemetry.rounds(10)["positions"]
    assert [(one["offered"], one["accepted"]) for one in positions] == [(2, 1), (1, 1), (1, 0)]


def test_readers_of_events_leave_connections_to_others():
    """Each of them keeps a connection, and all that there are would keep everyone else out."""
    telemetry = Telemetry()
    with ExitStack() as readers:
        for _ in range(READERS_LIMIT - 1):
            readers.enter_context(telemetry.reading())
        with telemetry.reading(), pytest.raises(Overloaded, match="close one"):
            readers.enter_context(telemetry.reading())
        readers.enter_context(telemetry.reading())
