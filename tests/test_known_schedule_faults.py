"""Rows of shared/cases/faults.md on schedules and time that no other test shows (known_faults)."""

import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import psycopg
import pytest

from qinglong_sql.cron import CronFault, check_cron
from qinglong_sql.cron_fire import fires
from qinglong_sql.errors import QinglongError
from qinglong_sql.limits import SCHEDULE_CLAIM_MS
from qinglong_sql.package import parse_package
from qinglong_sql.package_fault import PackageFaults
from qinglong_sql.schedule import run_schedule
from qinglong_sql.scheduler import Turn, local_cycle
from qinglong_sql.store.postgres import PostgresStore
from tests import acting
from tests.acting import Engine, Row, Store
from tests.scheduling import (
    DAY_MS,
    MINUTE_MS,
    NIGHTLY,
    begun,
    claim,
    commit,
    many,
    publish,
    runs,
    times,
    trigger,
)
from tests.server import Server, log
from tests.stores import FakeClock, ServerClock, store_on
from tests.test_schedule_races import at_once, drained

NEW_YORK = "America/New_York"
HOUR_MS = 3_600_000
SCHEDULERS = 12


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def test_an_old_claim_commits_nothing_when_the_trigger_is_due_again(
    store: Store, clock: FakeClock
) -> None:
    """B072: paused between claim and commit while another one fires, and it comes due again."""
    due_ms = begun(store, cron="* * * * *", tz="UTC")
    clock.set(due_ms)
    (old,) = claim(store)
    clock.advance(SCHEDULE_CLAIM_MS)
    assert run_schedule(store).effects == 1
    clock.set(due_ms + MINUTE_MS)
    for held in (False, True):
        if held:
            (new,) = claim(store, token="t2", owner="you")
        assert commit(store, old)["outcome"] != "applied"  # SQLite sees that it was done
        assert times(store) == [due_ms]
    assert commit(store, new, token="t2", owner="you")["outcome"] == "applied"
    assert times(store) == [due_ms, due_ms + MINUTE_MS]


def test_a_trigger_that_was_edited_again_and_again_fires_once(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    """B073: another calendar five times, a scheduler restarted after each."""
    for cron in ("0 3 * * *", "30 2 * * 1-5", "30 2 1 * *", "0 3 * * *", "30 2 * * *"):
        publish(store, cron=cron)
        with closing(store_on(engine, clock)) as restarted:
            run_schedule(restarted)
    due_ms = trigger(store)["next_fire_at_ms"]
    clock.set(due_ms)
    with closing(store_on(engine, clock)) as one, closing(store_on(engine, clock)) as two:
        assert run_schedule(one).effects + run_schedule(two).effects == 1
    assert times(store) == [due_ms]


def test_a_commit_that_meets_another_s_look_at_its_row_is_repeated_at_once(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the occurrence would wait until the end of its own claim, for half a minute."""
    clock.set(begun(store))
    call, answers = store.call, ["contended"] * 4

    def meeting(step: str, /, **params: object) -> list[Row]:
        if step == "commit_schedule" and answers:
            return [{"outcome": answers.pop()}]
        return call(step, **params)

    monkeypatch.setattr(store, "call", meeting)
    assert run_schedule(store).effects == 1 and not answers
    assert len(runs(store)) == 1


def test_those_who_lose_an_occurrence_are_silent(
    postgres_server: Server, postgres_dsn: str
) -> None:
    """B075, B077: twelve schedulers, two minutes; no error in their log or in the server's."""
    with closing(ServerClock(postgres_dsn)) as clock, closing(PostgresStore(postgres_dsn)) as store:
        publish(store, many(40, cron="* * * * *", tz="UTC"))
        drained(store)
        before = len(log(postgres_server))
        for minute in (1, 2):
            clock.set((clock.now_ms // MINUTE_MS + 1) * MINUTE_MS)
            assert at_once(postgres_dsn, *[drained] * SCHEDULERS) == []
            assert len(times(store)) == 40 * minute
        assert len({(row["trigger_key"], row["scheduled_at_ms"]) for row in runs(store)}) == 80
        assert "ERROR" not in log(postgres_server)[before:]


def test_the_next_time_does_not_depend_on_the_run_before(store: Store, clock: FakeClock) -> None:
    """B079: it fails, is never started, or is cancelled; the next day fires all the same."""
    due_ms = begun(store)
    clock.set(due_ms)
    run_schedule(store)
    (failed,) = runs(store)
    acting.admit(store, failed["run_id"])
    (held,) = acting.lease(store, "o1").values()
    acting.run(store, held)
    acting.report(store, held, exit_code=1)
    acting.advance(store, failed["run_id"])
    for day in (1, 2):
        clock.set(due_ms + day * DAY_MS)
        assert run_schedule(store).effects == 1
        acting.cancel(store, runs(store)[-1]["run_id"])
    assert times(store) == [due_ms, due_ms + DAY_MS, due_ms + 2 * DAY_MS]


def test_bad_rows_are_marked_and_a_hundred_good_ones_fire(store: Store, clock: FakeClock) -> None:
    """B083: past all checks of a package file, by the step itself."""
    bad = {
        "a-cron": NIGHTLY | {"cron": "broken"},
        "a-date": NIGHTLY | {"cron": "0 0 30 2 *"},
        "a-zone": NIGHTLY | {"tz": "Mars/Olympus"},
        "z-zone": NIGHTLY | {"tz": ""},
    }
    with pytest.raises((QinglongError, psycopg.IntegrityError, sqlite3.IntegrityError)):
        publish(store, {"null": NIGHTLY | {"cron": None}})
    publish(store, bad | many(100))
    turn = Turn()
    while run_schedule(store).applied:
        pass
    clock.set(trigger(store, "t0000")["next_fire_at_ms"])
    fired = 0
    for _ in range(8):
        tally = run_schedule(store)
        fired += tally.effects
    assert fired == 100
    rows = {row["trigger_key"]: row["fault_error"] for row in store.read("trigger_state")}
    assert {key for key, error in rows.items() if error} == set(bad)
    assert "never fires" in rows["a-date"] and "Mars/Olympus" in rows["a-zone"]
    assert local_cycle(store, turn).tallies["frontier"].faulted == 0
    assert acting.unbroken(store)


@pytest.mark.parametrize(
    "text", ["2026-03-12 03:11:13", "2026-03-12T03:11:13Z", "2026-03-12T03:11:13.5+08:00", 1.5]
)
def test_a_time_is_a_number_and_nothing_else(
    engine: Engine, store: Store, text: str | float
) -> None:
    """B084: no column of a time takes another form."""
    begun(store)
    for column in ("next_fire_at_ms", "due_at_ms", "updated_at_ms"):
        if engine.kind == "sqlite":
            with closing(sqlite3.connect(engine.dsn.removeprefix("sqlite:///"))) as file:
                with pytest.raises(sqlite3.IntegrityError):
                    file.execute(f"update trigger_schedule set {column} = ?", [text])
        else:
            value = f"'{text}'"
            with psycopg.connect(engine.dsn) as connection, pytest.raises(psycopg.DataError):
                connection.execute(f"update ql.trigger_schedule set {column} = {value}")  # type: ignore[arg-type]


def test_a_trigger_that_is_new_and_sooner_fires_first(store: Store, clock: FakeClock) -> None:
    """B086: nobody sleeps until a time; each cycle asks what is due."""
    late_ms = begun(store, cron="0 15 * * *", tz="UTC")
    clock.set(late_ms - 59 * MINUTE_MS - 30_000)  # 14:00:30
    run_schedule(store)
    soon = NIGHTLY | {"cron": "1 14 * * *", "tz": "UTC"}
    publish(store, {"every-night": NIGHTLY | {"cron": "0 15 * * *", "tz": "UTC"}, "soon": soon})
    run_schedule(store)
    clock.advance(30_000)
    assert run_schedule(store).effects == 1
    assert times(store) == [late_ms - 59 * MINUTE_MS]


def test_far_from_a_clock_change_it_fires_at_its_local_time(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    """B094: 17:00 in New York over both changes, every other day by a process that is new."""
    clock.set(ms("2026-03-05T12:00:00Z"))
    publish(store, cron="0 17 * * *", tz=NEW_YORK)
    wanted = []
    for first, last in (("2026-03-05", "2026-03-12"), ("2026-10-29", "2026-11-05")):
        at_ms = ms(f"{first}T20:00:00Z")  # and 21:00, 22:00, 23:00
        clock.set(at_ms)
        store.call("pause_trigger", p_package_key="nightly", p_trigger_key="every-night")
        publish(store, cron="0 18 * * *", tz=NEW_YORK)
        publish(store, cron="0 17 * * *", tz=NEW_YORK)  # its cursor begins anew
        store.call("resume_trigger", p_package_key="nightly", p_trigger_key="every-night")
        while at_ms <= ms(f"{last}T23:00:00Z"):
            clock.set(at_ms)
            with closing(store_on(engine, clock)) as restarted:
                run_schedule(restarted if at_ms // DAY_MS % 2 else store)
            local = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(NEW_YORK))
            if (local.hour, local.minute) == (17, 0):
                wanted.append(at_ms)
            at_ms += HOUR_MS if at_ms // HOUR_MS % 24 < 23 else 21 * HOUR_MS
    assert len(wanted) == 16 and times(store) == wanted


def test_seconds_go_on_evenly_over_both_changes() -> None:
    """B104."""
    for start in ("2026-03-08T06:00:00Z", "2026-11-01T05:00:00Z"):
        found = [one.at_ms for one in islice(fires("*/15 * * * * *", NEW_YORK, ms(start)), 960)]
        assert {two - one for one, two in pairwise(found)} == {15_000}, start


def test_nothing_fires_before_its_time(store: Store, clock: FakeClock) -> None:
    """B111: a loop that wakes up a little early, and then again."""
    due_ms = begun(store, cron="0 0 * * *", tz="UTC")
    for early_ms in (1_000, 10, 1):
        clock.set(due_ms - early_ms)
        assert run_schedule(store).scanned == 0
    for late_ms in (0, 1, 999, 1_000):
        clock.set(due_ms + late_ms)
        run_schedule(store)
    assert times(store) == [due_ms]
    assert datetime.fromtimestamp(due_ms / 1000, UTC).hour == 0


@pytest.mark.parametrize("expression", ["0 0 31 2 *", "0 0 30 02 *", "0 0 31 4,6,9,11 *"])
def test_a_date_that_never_comes_is_refused_at_once(expression: str) -> None:
    """B099: within a tenth of a second of this process's own time."""
    began = time.process_time()
    with pytest.raises(CronFault, match="never fires"):
        check_cron(expression)
    assert time.process_time() - began < 0.1


def test_a_trigger_without_a_zone_is_refused() -> None:
    """B103: there is no default that could be the machine's."""
    said = """
package: nightly
tasks: {work: {run: "true"}}
triggers:
  night: {cron: "0 8 * * *", task: work}
"""
    with pytest.raises(PackageFaults, match=r"5.*tz"):
        parse_package(said.encode(), "nightly.yaml")
