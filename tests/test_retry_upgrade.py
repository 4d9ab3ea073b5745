"""From 0003 to 0004 with retries of a trigger's runs open: they are in its way from then on."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql import migrate
from qinglong_sql.store import Store
from qinglong_sql.store.postgres import PostgresStore
from qinglong_sql.store.sqlite import SqliteStore
from tests import acting, engines
from tests.catalog import catalog
from tests.engines import Engine
from tests.scheduling import NAME, NIGHTLY, publish
from tests.server import SQL_ROOT, Server
from tests.stores import FakeClock, sqlite_store
from tests.test_migration import psql, schema
from tests.test_retry_run import retry
from tests.test_schedule_retries import end, marks
from tests.test_worker_upgrade import filled

BEFORE = "0003"
Story = dict[str, str]  # {run: the trigger in whose way it is, open or not}


def lived(store: Store) -> tuple[Story, Story]:
    """What triggers started, and retries of it that are open now, at two depths; and others."""
    publish(store, {key: NIGHTLY | {"overlap": "skip"} for key in ("t1", "t2", "t3")})
    started: Story = {}
    retries: Story = {}
    for depth, key in enumerate(("t1", "t2"), start=1):
        fire = NAME | {"p_trigger_key": key, "p_run_key": "by hand"}
        run_id = str(store.call("fire_trigger", **fire)[0]["run_id"])
        started[run_id] = key
        for _ in range(depth):
            run_id = str(retry(store, end(store, run_id))["run_id"])
        retries[run_id] = key
    fire = NAME | {"p_trigger_key": "t3", "p_run_key": "by hand"}
    run_id = str(store.call("fire_trigger", **fire)[0]["run_id"])
    started[run_id] = "t3"
    end(store, str(retry(store, end(store, run_id))["run_id"]), "succeeded")
    retry(store, end(store, acting.start(store, "task")))
    return started, retries


def known(store: Store, engine: Engine, started: Story, retries: Story) -> None:
    found = marks(engine)
    assert {one: key for one, (key, _) in found.items()} == started | retries
    blocked = store.read("schedule_blocked")
    assert {row["waits_on"]: row["trigger_key"] for row in blocked} == retries
    for row in blocked:
        run = acting.run_row(store, row["waits_on"])
        assert row["since_ms"] == run["admitted_at_ms"] and run["status"] == "running"
    assert store.read("violation") == []


@pytest.fixture
def old_postgres(postgres_server: Server) -> Iterator[str]:
    url = engines.fresh_postgres(postgres_server, template=None)
    psql(postgres_server, url, SQL_ROOT / "postgres" / "role.sql")
    assert migrate.upgrade(url, BEFORE) == BEFORE
    yield url
    engines.drop_postgres(postgres_server, url)


@pytest.mark.all_versions
def test_open_retries_are_known_on_postgres(old_postgres: str, postgres_dsn: str) -> None:
    engine = Engine("postgres", old_postgres, None)
    with closing(PostgresStore(old_postgres)) as store:
        started, retries = lived(store)
        before = acting.everything(engine)
        assert marks(engine).keys() == started.keys()
        assert migrate.upgrade(old_postgres) == engines.NEWEST
        after = acting.everything(engine)
        assert {one for one in before if before[one] != after[one]} <= {
            "trigger_run", "alembic_version",
        }  # fmt: skip
        assert catalog(old_postgres) == catalog(postgres_dsn)
        known(store, engine, started, retries)


def test_open_retries_are_known_on_sqlite(tmp_path: Path) -> None:
    clock = FakeClock()
    with closing(sqlite_store(tmp_path, clock, name="new.db")) as store:
        started, retries = lived(store)
    old = tmp_path / "old.db"
    assert migrate.upgrade(f"sqlite:///{old}", BEFORE) == BEFORE
    filled(old, tmp_path / "new.db")
    with closing(sqlite3.connect(old, isolation_level=None)) as connection:  # as 0003 left it
        name = "trigger_run_goes_with_its_run"
        (text,) = connection.execute("select sql from sqlite_schema where name = ?", [name])
        connection.execute(f"drop trigger {name}")
        connection.execute(
            "delete from trigger_run where (select r.retry_of_run_id from run as r"
            " where r.run_id = trigger_run.run_id) is not null"
        )
        connection.execute(text[0])
    engine = Engine("sqlite", f"sqlite:///{old}", None)
    assert marks(engine).keys() == started.keys()
    assert migrate.upgrade(f"sqlite:///{old}") == engines.NEWEST
    assert schema(old) == schema(tmp_path / "new.db")
    with closing(SqliteStore(old, clock=clock.now)) as store:
        known(store, engine, started, retries)
