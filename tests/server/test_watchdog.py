from dspark.decoding.events import PrefillProgress
from dspark.server.telemetry import Telemetry
from dspark.server.watchdog import Watchdog


def test_a_round_that_does_not_end_is_told_once(monkeypatch, caplog):
    """J5: a stuck round is reported while it is stuck, and a slow answer of many rounds is not."""
    monkeypatch.setenv("MLX_DSPARK_SLOW_ROUND_LOG_S", "5")
    telemetry = Telemetry()
    now = [0.0]
    watchdog = Watchdog(telemetry, lambda: now[0])
    with telemetry.watched("req-stuck", "dspark", 10) as watch:
        for _ in range(4):
            watch.hear(PrefillProgress(1, 10))
            now[0] = telemetry.progress_at + 4
            watchdog.look()
        assert not caplog.records
        now[0] += 2
        watchdog.look()
        watchdog.look()
    assert [record.getMessage()[:31] for record in caplog.records] == ["req-stuck: no progress for 6 s;"]
    now[0] += 1000
    watchdog.look()
    assert len(caplog.records) == 1, "an idle server is not stuck"
