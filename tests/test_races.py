"""Schedulers, workers and cancellers at once on PostgreSQL: no deadlock, and nothing twice.

Each check of the race is shown to have teeth: a lock order turned around is seen by the sampler
without a deadlock, and ends in one that is counted.
"""

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from qinglong_sql.store.postgres import PostgresStore, open_postgres_store
from tests import acting, racing
from tests.waits import Waits

RACE_S = 4.0
RUNS = 20

# What lock_runs would be if it began with the rows that come after the run in the table.
TURNED = """
  create or replace function ql.lock_runs (p_run_ids text[]) returns text[]
  language plpgsql volatile set search_path = pg_catalog, pg_temp
  as $$
  begin
    perform from ql.{table} as x where x.run_id = any(p_run_ids) for no key update;
    return array(
      select r.run_id from ql.run as r where r.run_id = any(p_run_ids)
      order by r.run_id for no key update
    );
  end;
  $$
"""


@pytest.fixture
def store(postgres_dsn: str) -> Iterator[PostgresStore]:
    opened = open_postgres_store(postgres_dsn)
    yield opened
    opened.close()


def test_a_race_ends_without_deadlock_duplicate_or_crossed_wait(postgres_dsn: str) -> None:
    race = racing.race(postgres_dsn, runs=RUNS, seconds=RACE_S, seed=1)
    assert race.failures == []
    assert race.counts["executions"] > 200
    assert race.counts["accepted"] > 5
    assert race.counts["runs succeeded"] > 0
    assert race.waits.samples > 100
    assert race.waits.seen["run"] > 0, race.waits.seen


def waits_of_a_report(store: PostgresStore, dsn: str) -> Waits:
    """What a sampler sees of a report that meets a run that is held."""
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    acting.run(store, held)
    waits = Waits()
    with psycopg.connect(dsn) as other, psycopg.connect(dsn, autocommit=True) as watch:
        other.execute("select from ql.run for no key update")
        reporting = threading.Thread(target=acting.report, args=(store, held))
        reporting.start()
        limit = time.monotonic() + 5
        while reporting.is_alive() and time.monotonic() < limit and not waits.seen:
            waits.sample(watch)
        other.rollback()
        reporting.join()
    return waits


def test_a_report_that_waits_for_its_run_holds_nothing_later(
    store: PostgresStore, postgres_dsn: str
) -> None:
    waits = waits_of_a_report(store, postgres_dsn)
    assert (set(waits.seen), dict(waits.crossed)) == ({"run"}, {})


@pytest.mark.parametrize("table", ["step_run", "task_attempt"])
def test_an_order_turned_around_is_seen_without_a_deadlock(
    store: PostgresStore, postgres_dsn: str, table: str
) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(TURNED.format(table=table).encode())
    waits = waits_of_a_report(store, postgres_dsn)
    assert set(waits.crossed) == {f"waits for run and holds {table}"}


def test_an_order_turned_around_fails_the_race(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(TURNED.format(table="step_run").encode())
    race = racing.race(postgres_dsn, runs=10, seconds=2, seed=1)
    assert any("holds step_run" in words or "deadlock" in words for words in race.failures), race


def test_a_step_that_is_executed_twice_is_seen() -> None:
    track = racing.Track("")
    row = {"run_id": "r", "step_key": "a"}
    for number in (1, 2):
        track.begin(acting.Held(f"r-{number}", 1, "t", row))
    track.begin(acting.Held("r-2", 2, "t", row))
    assert len(track.race.failures) == 3
