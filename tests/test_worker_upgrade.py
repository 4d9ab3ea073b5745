"""From 0002 to 0003 with work in hand: every row stays, and workers go on (DESIGN §10)."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from qinglong_sql import migrate
from qinglong_sql.errors import Fenced
from qinglong_sql.store import Store
from qinglong_sql.store.postgres import PostgresStore
from qinglong_sql.store.sqlite import SqliteStore
from tests import acting, engines
from tests.acting import Held
from tests.catalog import catalog
from tests.engines import Engine
from tests.server import SQL_ROOT, Server
from tests.stores import FakeClock, sqlite_store
from tests.test_migration import psql, schema

BEFORE = "0002"
NEW = {"seen_at_ms": None, "drain_requested_at_ms": None}


def lived(store: Store) -> Held:
    """A run that has ended, one with a running attempt, workers that are there and that left."""
    acting.publish(store, {"a": [], "b": ["a"]})
    for key in ("done", "live"):
        acting.admit(store, acting.start(store, key=key))
        held = acting.lease(store, f"offer of {key}")["a"]
        acting.run(store, held)
        if key == "done":
            acting.report(store, held, exit_code=1)
            acting.advance(store, held.row["run_id"])
    acting.register(store, "w2", "t1")
    store.call("end_session", p_worker_id="w2", p_session_id="t1")
    acting.register(store, "w3", "u1", self_fencing=0)
    return held


def goes_on(store: Store, held: Held) -> None:
    """What began under the old revision ends under the new one, and what is new works on it."""
    (row,) = store.read("worker_hold")
    assert (row["attempt_id"], row["worker_id"], row["status"]) == (
        held.attempt_id, "w1", "running"
    )  # fmt: skip
    assert NEW.items() <= store.read("worker_state", worker_id="w1")[0].items()
    assert store.call("drain_worker", p_worker_id="w1")[0]["status"] == "draining"
    with pytest.raises(Fenced):
        acting.offer_rows(store, ["o9"])
    beat = {"p_worker_id": "w1", "p_session_id": "s1"}
    assert store.call("heartbeat_worker", **beat)[0]["status"] == "draining"
    assert store.call("undrain_worker", p_worker_id="w1")[0]["status"] == "online"
    assert acting.renew(store, held)[0]["outcome"] == "applied"
    batch = acting.commands(held, worker_id="w1")
    assert store.call("attempt_standing", p_commands=batch)[0]["status"] == "running"
    assert acting.report(store, held)[0]["status"] == "succeeded"
    run_id = held.row["run_id"]
    acting.advance(store, run_id)
    acting.finish(store, run_id)
    acting.advance(store, run_id)
    assert acting.ended(store, run_id) == ("succeeded", None)
    assert acting.unbroken(store)


def kept(before: dict[str, list[str]], after: dict[str, list[str]]) -> None:
    """Every row is as it was; a session has two columns more, at its end, and both are null."""
    more = {name: rows for name, rows in after.items() if name not in before}
    assert more == {"worker_audit": []}
    assert len(before["worker_session"]) == 3
    before["worker_session"] = [f"{row[:-1]}, None, None)" for row in before["worker_session"]]
    for name in before.keys() - {"alembic_version"}:
        assert after[name] == before[name], name


@pytest.fixture
def old_postgres(postgres_server: Server) -> Iterator[str]:
    url = engines.fresh_postgres(postgres_server, template=None)
    psql(postgres_server, url, SQL_ROOT / "postgres" / "role.sql")
    assert migrate.upgrade(url, BEFORE) == BEFORE
    yield url
    engines.drop_postgres(postgres_server, url)


@pytest.mark.all_versions
def test_postgres_keeps_its_rows_and_a_connected_worker_goes_on(
    old_postgres: str, postgres_dsn: str
) -> None:
    engine = Engine("postgres", old_postgres, None)
    with closing(PostgresStore(old_postgres)) as store:
        held = lived(store)
        before = acting.everything(engine)
        assert migrate.upgrade(old_postgres) == engines.NEWEST
        kept(before, acting.everything(engine))
        assert catalog(old_postgres) == catalog(postgres_dsn)
        goes_on(store, held)  # on the connection that knows the functions of before


def test_postgres_waits_for_nobody_longer_than_five_seconds(old_postgres: str) -> None:
    """A migration that cannot have worker_session leaves everything as it was."""
    before = catalog(old_postgres)
    with psycopg.connect(old_postgres) as other:
        other.execute("lock table ql.worker_session in access share mode")
        with pytest.raises(Exception, match="lock timeout"):
            migrate.upgrade(old_postgres)
    assert catalog(old_postgres) == before
    assert migrate.current(old_postgres) == BEFORE
    assert migrate.upgrade(old_postgres) == engines.NEWEST


def test_sqlite_keeps_its_rows_and_work_goes_on(tmp_path: Path) -> None:
    clock = FakeClock()
    with closing(sqlite_store(tmp_path, clock, name="new.db")) as store:
        held = lived(store)
    old = tmp_path / "old.db"
    assert migrate.upgrade(f"sqlite:///{old}", BEFORE) == BEFORE
    filled(old, tmp_path / "new.db")
    engine = Engine("sqlite", f"sqlite:///{old}", None)
    before = acting.everything(engine)
    assert migrate.upgrade(f"sqlite:///{old}") == engines.NEWEST
    kept(before, acting.everything(engine))
    assert schema(old) == schema(tmp_path / "new.db")
    with closing(SqliteStore(old, clock=clock.now)) as store:
        goes_on(store, held)


def filled(old: Path, new: Path) -> None:
    """The rows of a new file in an old one: the steps of the old revision are no more."""
    with closing(sqlite3.connect(old, isolation_level=None)) as connection:
        connection.execute("attach ? as new", [str(new)])
        names = "select name from main.sqlite_schema where type = 'table'"
        for (name,) in connection.execute(names).fetchall():
            if name != "alembic_version":
                text = f'select name from pragma_table_info("{name}")'
                columns = ", ".join(one for (one,) in connection.execute(text))
                connection.execute(
                    f'insert into main."{name}" ({columns}) select {columns} from new."{name}"'
                )
