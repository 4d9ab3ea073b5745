"""SQLite: whoever may open the file may do everything, but for what never changes (DESIGN §12)."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests import acting, sqltext
from tests.stores import FakeClock, sqlite_store


@pytest.fixture
def lived(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A foreign hand on a file that has a row in every table."""
    clock = FakeClock()
    with closing(sqlite_store(tmp_path, clock)) as store:
        value = acting.model(
            {"work": acting.task()}, {"flow": acting.workflow({"a": [], "b": ["a"]})}
        )
        night = {"cron": "0 2 * * *", "tz": "UTC", "kind": "workflow", "target": "flow"}
        value["triggers"] = {"night": night | {"misfire": "fire_once", "overlap": "allow"}}
        acting.publish_model(store, value)
        run_id = acting.start(store)
        acting.admit(store, run_id)
        held = acting.lease(store)["a"]
        acting.run(store, held)
        acting.report(store, held, output='{"x":1}')
        acting.report(store, held, how="stop", exit_code=None)
        acting.advance(store, run_id)
        acting.lease(store, "o2")
        clock.advance(3_600_000)
        acting.recover(store, run_id)
        acting.cancel(store, run_id)
        store.call("record_fault", p_run_id=run_id, p_stage="cancellation", p_error="broken")
        name = {"p_package_key": "nightly", "p_trigger_key": "night"}
        store.call("fire_trigger", **name, p_run_key="by hand")
        store.call("record_trigger_fault", **name, p_state_version=1, p_error="broken")
        store.call("audit_worker", p_worker_id="w1", p_route="lease", p_certificate="2a")
        path = store.path
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma recursive_triggers = on")
        yield connection


def refused(connection: sqlite3.Connection, text: str) -> bool:
    connection.execute("begin")
    try:
        connection.execute(text)
    except sqlite3.IntegrityError as error:
        return str(error).startswith(("QL409", "QL500"))
    finally:
        connection.execute("rollback")
    return False


@pytest.mark.parametrize("name", sqltext.tables("sqlite"))
def test_sqlite_keeps_what_is_written_once(lived: sqlite3.Connection, name: str) -> None:
    """A table without the line `-- moves` is append-only; the columns before it stay."""
    table = sqltext.tables("sqlite")[name]
    assert lived.execute(f"select count(*) from {name}").fetchone()[0], f"nothing in {name}"
    for column in table.keeps + table.moves:
        stays = refused(lived, f"update {name} set {column} = {column}")
        assert stays == (column in table.keeps), f"{name}.{column} stays: {stays}"
    if not table.moves:
        for text in (
            f"delete from {name}",
            f"insert into {name} select * from {name} limit 1",
            f"insert or replace into {name} select * from {name} limit 1",
            f"insert or ignore into {name} select * from {name} limit 1",
        ):
            assert refused(lived, text), text
