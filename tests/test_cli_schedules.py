"""`schedules` and `trigger`: what fires when, what became of it, and what is in its way."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from qinglong_sql.cli.schedules import NEXT, next_of, overdue_of
from qinglong_sql.limits import CRON_GRACE_MS
from qinglong_sql.schedule import run_schedule
from tests.acting import Engine, Store
from tests.scheduling import NIGHTLY, begun, publish
from tests.shell import Shell
from tests.stores import FakeClock, ship_clock


@pytest.fixture
def shell(engine: Engine, tmp_path: Path) -> Shell:
    return Shell(tmp_path, engine.dsn)


def test_schedules_tell_next_times_the_last_outcome_and_what_is_waited_for(
    store: Store, clock: FakeClock, shell: Shell
) -> None:
    assert shell("schedules").stdout == "no package has a trigger\n"
    clock.set(begun(store, overlap="skip"))
    run_schedule(store)
    (told,) = json.loads(shell("schedules", "--json").stdout)["schedules"]
    assert told["overdue"] == "2023-11-16T01:30:00Z", "by the time of this process"
    assert len(told["next"]) == NEXT and min(told["next"]) > f"{datetime.now(UTC):%Y-%m-%d}"
    run_id = told["last"]["run_id"]
    assert told["last"] == {
        "scheduled": "2023-11-15T01:30:00Z", "outcome": "admitted", "run_id": run_id,
        "run_status": "running",
    }  # fmt: skip
    assert [one["waits_for"] for one in told["waits"]] == ["overlap"]
    plain = shell("schedules", "nightly", "every-night").stdout
    assert "running" in plain and f"the end of {run_id[:12]}" in plain
    done = shell("schedules", "nightly", "no-such")
    assert done.returncode == 5 and "no trigger no-such" in done.stderr


def test_between_tells_what_a_period_would_fire(store: Store, shell: Shell) -> None:
    publish(store, {"t": NIGHTLY, "hourly": NIGHTLY | {"cron": "0 * * * *", "tz": "UTC"}})
    words = ("schedules", "--between", "2026-03-28", "2026-03-30", "--json")
    fires = json.loads(shell(*words).stdout)["fires"]
    at = [one["at"] for one in fires if one["trigger_key"] == "t"]
    assert at == ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z"]  # 02:30 is jumped over
    assert len(fires) == 48 + 2 and fires == sorted(fires, key=lambda one: one["at"])
    assert shell("schedules", "--between", "2026-03-30", "2026-03-28").returncode == 2
    assert shell("schedules", "--between", "soon", "2026-03-28").returncode == 2
    done = shell("schedules", "--between", "2020-01-01", "2030-01-01")
    assert done.returncode == 5 and "more than 10000" in done.stderr


def test_a_trigger_is_paused_resumed_and_fired(store: Store, shell: Shell) -> None:
    publish(store)
    name = ("nightly", "every-night")
    assert shell("trigger", "pause", *name).stdout == "nightly/every-night is paused\n"
    assert "paused" in shell("schedules").stdout
    first = json.loads(shell("trigger", "fire", *name, "--key", "k", "--json").stdout)
    again = json.loads(shell("trigger", "fire", *name, "--key", "k", "--json").stdout)
    assert (first["outcome"], again["outcome"]) == ("created", "existing")
    assert first["run_id"] == again["run_id"] and len(store.read("run_state")) == 1
    assert shell("trigger", "resume", *name).stdout == "nightly/every-night is active\n"
    assert shell("trigger", "pause", "nightly", "none").returncode == 5


def test_a_trigger_that_raises_is_seen_everywhere(
    store: Store, engine: Engine, shell: Shell
) -> None:
    publish(store, cron="no cron at all")
    run_schedule(store)
    status = json.loads(shell("status", "--json").stdout)
    (row,) = [one for one in status["stuck"] if one["waits_for"] == "trigger_fault"]
    assert not status["ok"] and "no cron at all" in row["words"]
    assert row["command"].startswith("qinglong-sql trigger resume nightly every-night")
    assert "no cron at all" in shell("status").stdout
    if engine.kind == "postgres":
        ship_clock(engine.dsn)
    assert "fault: trigger nightly/every-night, 1 times:" in shell("doctor").stdout
    assert "raised: 'no cron at all'" in shell("schedules").stdout


def test_a_trigger_that_nobody_fires_is_told(store: Store, shell: Shell) -> None:
    begun(store)  # in 2023
    status = json.loads(shell("status", "--json").stdout)
    assert [one["waits_for"] for one in status["stuck"]] == ["trigger"] and not status["ok"]
    assert "nobody looks at the clock" in shell("status").stdout
    assert shell("status", "--check").returncode == 1


ROW = {"state": "active", "cron": "30 2 * * *", "tz": "UTC", "since_ms": 0}
DAY_MS = 24 * 60 * 60 * 1000
HALF_PAST_TWO_MS = 150 * 60 * 1000


@pytest.mark.parametrize(
    ("now_ms", "overdue", "first"),
    [
        (HALF_PAST_TWO_MS - 1, None, HALF_PAST_TWO_MS),
        (HALF_PAST_TWO_MS + CRON_GRACE_MS, None, HALF_PAST_TWO_MS),
        (HALF_PAST_TWO_MS + CRON_GRACE_MS + 1, HALF_PAST_TWO_MS, HALF_PAST_TWO_MS + DAY_MS),
        (HALF_PAST_TWO_MS + 9 * DAY_MS, HALF_PAST_TWO_MS, HALF_PAST_TWO_MS + 10 * DAY_MS),
    ],
)
def test_what_is_long_over_is_never_told_as_next(
    now_ms: int, overdue: int | None, first: int
) -> None:
    row = ROW | {"next_fire_at_ms": HALF_PAST_TWO_MS}
    assert overdue_of(row, now_ms) == overdue
    assert next(next_of(row, now_ms)) == first
    assert overdue_of(row | {"state": "paused"}, now_ms) is None


def test_whom_an_overdue_trigger_waits_for_is_told(store: Store, shell: Shell) -> None:
    begun(store)  # in 2023
    assert "who fires it: overdue since" in " ".join(shell("schedules").stdout.split())


def test_a_time_that_is_none_is_told_of_its_own_option(shell: Shell) -> None:
    done = shell("schedules", "--between", "foo", "bar")
    assert done.returncode == 2 and "--between" in done.stderr and "--after" not in done.stderr
