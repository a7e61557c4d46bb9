"""The soak in small: whatever clients do, the server's counters add up."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
from live import served
from soak import Sample, Soak, loads, slope

OF_A_LONG_RUN = ("memory does not grow", "no thread is left over", "no descriptor is left over")


def test_counters_add_up_over_cancelled_requests_and_swaps(tmp_path, monkeypatch):
    """Acceptance 5, shortened."""
    monkeypatch.setenv("MLX_DSPARK_HOME", str(tmp_path / "home"))
    turns = loads(tmp_path)
    bounds = {"prefix_cache_slots": 3, "prefix_cache_dir": str(tmp_path / "kept"), "prefix_cache_disk_bytes": 4_000_000}
    with served(**turns[0], **bounds) as live:
        soak = Soak(live.url, os.getpid(), turns)
        soak.run(30, 15)
        found = soak.report(live.get("/metrics"))
    wrong = [check for check, holds in found["checks"].items() if not holds and check not in OF_A_LONG_RUN]
    assert wrong == [], found
    assert found["requests"] == 30 and found["seen"]["left"] and found["prefix_cache"]["disk written"]


def test_the_slope_is_that_of_the_line():
    samples = [Sample(at, 0.0, 1000 + 3 * at, 1, 1, 0, 0, 0) for at in (100, 200, 300)]
    assert slope(samples, "rss_bytes") == 3.0 and slope(samples[:1], "rss_bytes") == 0.0
