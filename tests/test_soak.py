"""The soak, shortly: it ends and kills an edge, finds nothing left, and can find something."""

from pathlib import Path

import pytest

from scripts import soak
from scripts.soak import Sample, slope, warm
from scripts.soak_burst import allowed_kib


def test_a_short_soak_leaves_nothing(tmp_path: Path) -> None:
    report = soak.run(minutes=0.1, tasks=8, seed=3, profile="edge", folder=tmp_path, runs=60)
    assert report["broken"] == []
    assert report["runs"] == sum(report["ended"].values()) > 2
    assert sum(report["edge_ends"].values()) >= 2, "with the one at the end"
    assert report["runs"] >= 60 and len(report["burst"]["rss_kib"]) > 1
    assert report["left"] == {"processes": 0, "files": 0, "folders": 0}
    assert "run_event" in soak.shown(report)


def sample(life: int, at_s: float, rss: float) -> Sample:
    return Sample(at_s, life, int(rss), 0, 0, 0, 0, 0)


def test_the_slope_is_that_of_each_life() -> None:
    flat = [sample(life, 10.0 * n, 1000 * life) for life in (1, 2) for n in range(10)]
    assert slope(flat, "rss") == 0
    grows = [sample(1, float(n), 50 * n) for n in range(100)]
    assert slope(grows, "rss") == pytest.approx(3000)
    assert [one.at_s for one in warm(grows, 98)] == [98, 99]


def test_a_short_burst_may_fill_the_page_cache_and_no_more() -> None:
    assert (allowed_kib(60), allowed_kib(4_999)) == (4352, 4352)
    assert (allowed_kib(5_000), allowed_kib(6_000)) == (256, 256)
