"""Some days pass for a trigger in every rule set (tests.days); the long proof takes 400 of them."""

from datetime import UTC, datetime

from qinglong_sql.store import Store
from tests.days import passed, scanned
from tests.stores import FakeClock

START = int(datetime(2026, 3, 28, tzinfo=UTC).timestamp())  # Europe's clocks change on the 29th


def test_through_the_days_every_rule_set_fires_as_the_minutes_say(
    store: Store, clock: FakeClock
) -> None:
    assert passed(store, clock, "30 2 * * *", START, 2) == []


def test_the_scan_knows_a_gap_and_a_repeated_hour() -> None:
    found = scanned("Europe/Berlin", "30 2 * * *", START, START + 2 * 86_400)
    assert [at - START for at in found] == [5_400, 86_400 + 3_600]
    autumn = int(datetime(2026, 10, 25, tzinfo=UTC).timestamp())
    found = scanned("Europe/Berlin", "30 2 * * *", autumn, autumn + 86_400)
    assert [at - autumn for at in found] == [1_800]
    assert len(scanned("Europe/Berlin", "*/30 * * * *", autumn, autumn + 86_400)) == 48
