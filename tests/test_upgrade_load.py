"""An upgrade while 0.1.0 works, one that is held up or killed, and the way back (DESIGN §10).

The long form, with 0.2.0's control processes, millions of rows and many kills, is
`scripts/prove --only upgrade`.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from qinglong_sql import migrate
from qinglong_sql.errors import Malformed, NotReady
from qinglong_sql.migrate_wait import GIVEN_UP
from qinglong_sql.store.postgres import PostgresStore
from tests import acting, server, upgrade_breaks, upgrades
from tests.binaries import default
from tests.catalog import catalog
from tests.engines import NEWEST
from tests.server import Server
from tests.shell import Shell
from tests.stores import FakeClock, sqlite_store
from tests.test_migration import schema
from tests.upgrading import NoHistory


@pytest.fixture
def own_server() -> Iterator[Server]:
    with server.running(default()) as one:
        yield one


@pytest.fixture
def old(postgres_server: Server) -> Iterator[str]:
    with upgrades.old_database(postgres_server, "0001") as url:
        yield url


def test_runs_of_0_1_0_work_on_while_the_schema_moves_and_new_ones_take_over(
    postgres_server: Server, old: str, tmp_path: Path
) -> None:
    if postgres_server.entry:
        pytest.skip("0.1.0 prepares statements, which a pgbouncer before 1.21 breaks")
    try:
        story = upgrades.under_load(postgres_server, tmp_path, old, "0001", hands=2, slow_s=0.8)
    except NoHistory as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    assert story.wrong == []
    assert int(story.counts["runs"]) >= 7


def test_a_migration_that_cannot_have_a_lock_names_who_has_it_and_goes_through_later(
    postgres_server: Server, old: str, tmp_path: Path
) -> None:
    there, heard = catalog(old), list[str]()
    with psycopg.connect(old, application_name="report of ann") as other:
        other.execute("select count(*) from ql.trigger_schedule")
        (pid,) = other.execute("select pg_backend_pid()").fetchone() or ()
        with pytest.raises(NotReady) as raised:
            migrate.upgrade(upgrades.migrator(postgres_server, old), note=heard.append)
    words = str(raised.value)
    assert f"nothing was changed; ql.trigger_schedule was held by pid {pid}" in words
    assert "report of ann" in words and "pg_read_all_stats may see" in words
    assert f"select pg_terminate_backend({pid}), and run it again" in words
    assert heard == [line for line in heard if f"held by pid {pid}" in line] and len(heard) == 1
    assert catalog(old) == there and migrate.current(old) == "0001"
    assert migrate.upgrade(old) == NEWEST


def test_who_waits_for_another_migration_is_told_so(postgres_server: Server, old: str) -> None:
    heard: list[str] = []
    with psycopg.connect(old) as other:
        other.execute("select pg_advisory_xact_lock(71070001)")

        def told(line: str) -> None:
            heard.append(line)
            threading.Thread(target=other.rollback).start()

        assert migrate.upgrade(old, note=told) == NEWEST
    assert len(heard) == 1 and heard[0].startswith("waiting for another migration: pid "), heard
    assert "idle in transaction, its transaction is " in heard[0]


@pytest.mark.parametrize("whom", ["client", "server"])
def test_a_migration_that_is_killed_in_its_middle_leaves_nothing_half(
    own_server: Server, whom: str
) -> None:
    with upgrades.old_database(own_server, "0002") as url:
        assert upgrade_breaks.broken_off(url, "0002", whom, 0.0) in ("0002", NEWEST)


def test_a_wait_is_told_of_only_where_the_server_gave_up(old: str) -> None:
    """Codes and not words: a server may speak another language."""
    assert {"55P03", "40P01", "57014"} == GIVEN_UP
    with psycopg.connect(old) as connection:
        connection.execute("alter table ql.trigger_schedule add column due_at_ms bigint")
    with pytest.raises(Exception, match="already exists") as raised:
        migrate.upgrade(old)
    assert not isinstance(raised.value, NotReady) and migrate.current(old) == "0001"


def test_rows_that_a_new_rule_would_refuse_are_named_before_anything_changes(old: str) -> None:
    with closing(PostgresStore(old)) as store:
        acting.publish_model(store, acting.model({"work": acting.task()}) | {"triggers": {
            key: {"cron": "0 3 * * *", "kind": "task", "misfire": "fire_once", "overlap": "skip",
                  "target": "work", "tz": "UTC"} for key in ("calm", "torn")}})  # fmt: skip
    there = catalog(old)
    with psycopg.connect(old, autocommit=True) as connection:
        connection.execute(
            "update ql.trigger_schedule set claim_owner = 'ann', claim_token = 't',"
            " claim_expires_at_ms = 1 where trigger_key = 'torn'"
        )
        with pytest.raises(NotReady) as raised:
            migrate.upgrade(old)
        words = str(raised.value)
        assert "a_claim_says_what_it_observed" in words and "(nightly, torn, ann)" in words
        assert "calm" not in words and migrate.current(old) == "0001" and catalog(old) == there
        assert migrate.upgrade(old, "0001") == "0001", "it is of no revision that is asked for"
        connection.execute(words.partition("such as by: ")[2].encode())
    assert migrate.upgrade(old) == NEWEST


def test_the_way_back_tells_how_many_rows_it_would_drop_and_drops_none_unsaid(
    postgres_server: Server, old: str, tmp_path: Path
) -> None:
    migrate.upgrade(old)
    with closing(PostgresStore(old)) as store:
        acting.begun(store, {"a": [], "b": ["a"]})
    there = catalog(old)
    shell = Shell(tmp_path, upgrades.migrator(postgres_server, old))
    done = shell("migrate", "--to", "base")
    assert done.returncode == 5 and "drops 16 rows for good (run_event 4, " in done.stderr, done
    assert "--drop-rows" in done.stderr and catalog(old) == there
    for back in ("0002", "0001"):
        with pytest.raises(Malformed, match=f"there is no way back to {back}: .*restore a copy"):
            migrate.downgrade(old, back, drop_rows=True)
        done = shell("migrate", "--to", back)
        assert done.returncode == 5 and "restore a copy" in done.stderr, done
    assert catalog(old) == there and migrate.current(old) == NEWEST
    assert shell("migrate", "--drop-rows").returncode == 5
    done = shell("migrate", "--to", "base", "--drop-rows", "--json")
    assert json.loads(done.stdout) == {"before": NEWEST, "after": None}, done
    assert migrate.current(old) is None
    assert shell("migrate", "--to", "base").stdout == "there is nothing of ours\n"
    assert migrate.upgrade(old) == NEWEST


def test_the_way_back_waits_for_nobody_and_looks_again_under_its_lock(
    postgres_server: Server, old: str
) -> None:
    """Rows that come between the look and the lock are not dropped either."""
    with psycopg.connect(old) as other:
        row = "('w', 's', 1, 'online', '[]', 1, 1, 0, 0, 0)"
        other.execute(f"insert into ql.worker_session values {row}".encode())
        failed: list[Exception] = []

        def back() -> None:
            try:
                migrate.downgrade(old)
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=back)
        thread.start()
        wait_for_lock(old)
        other.commit()
        thread.join(30)
    (error,) = failed
    assert isinstance(error, Malformed) and "drops 1 rows for good (worker_session 1)" in str(error)
    assert migrate.current(old) == "0001"


def wait_for_lock(url: str) -> None:
    asked = (
        "select count(*) from pg_locks as l join pg_stat_activity as a on a.pid = l.pid"
        " where a.application_name ~ '^qinglong-migrate ' and not l.granted"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(asked).fetchone() == (0,):
            pass


def test_the_way_back_of_a_file_is_the_same(tmp_path: Path) -> None:
    with closing(sqlite_store(tmp_path, FakeClock(), name="a.db")) as store:
        acting.begun(store, {"a": []})
    there = schema(tmp_path / "a.db")
    shell = Shell(tmp_path, f"sqlite:///{tmp_path}/a.db")
    done = shell("migrate", "--to", "base")
    assert done.returncode == 5 and "rows for good (" in done.stderr and "run 1" in done.stderr
    assert schema(tmp_path / "a.db") == there
    assert shell("migrate", "--to", "base", "--drop-rows").returncode == 0
    assert schema(tmp_path / "a.db") == []
