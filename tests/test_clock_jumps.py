"""The clock is set while an edge fires triggers: an hour forward, ten minutes back (issue 5).

PostgreSQL's own clock is set by the long proof (tests.prove.schedules), with libfaketime.
"""

from pathlib import Path

import pytest

from tests import skewed
from tests.skewed import Fired

HOUR_MS = 3_600_000
LATE: Fired = ("once", 2_000, HOUR_MS + 1_500)
GOOD: list[Fired] = [("once", 1_000, 1_100), LATE, ("never", HOUR_MS + 2_000, HOUR_MS + 2_100)]


def test_an_edge_whose_clock_is_set_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with skewed.on_sqlite(tmp_path) as place:
        wrong, counts = skewed.jumped(place)
    assert wrong == [] and counts["runs"] >= 6 * skewed.FEW


def test_what_is_right_is_not_told() -> None:
    assert list(skewed.judged(GOOD, GOOD, HOUR_MS + 1_000)) == []


@pytest.mark.parametrize(
    ("seen", "rows", "told"),
    [
        ([GOOD[0]], [], "of the hour that was left out"),
        ([("once", 3_000, HOUR_MS + 1_600)], [], "of the hour that was left out"),
        ([("never", 2_000, HOUR_MS + 1_500)], [], "of the hour that was left out"),
        ([], [("once", 9_000, 8_000)], "before its time"),
        ([], [("once", 1_000, 1_200)], "two runs"),
    ],
)
def test_what_is_wrong_is_told(seen: list[Fired], rows: list[Fired], told: str) -> None:
    first = [one for one in GOOD if one != LATE] if seen == [GOOD[0]] else GOOD + seen
    assert any(told in line for line in skewed.judged(first, GOOD + seen + rows, HOUR_MS + 1_000))


def test_a_run_that_is_gone_is_told() -> None:
    assert list(skewed.judged(GOOD, GOOD[1:], HOUR_MS + 1_000)) == ["a run is gone"]
