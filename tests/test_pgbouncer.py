"""Behind pgbouncer in transaction mode: every step, many at once, and a control process.

Only with `--pgbouncer`, as `.ci/run tests_pgbouncer` has it, where other files run behind it too.
"""

import contextlib
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from qinglong_sql.readiness import CONTROL_GROUPS, Unready, assert_ready
from qinglong_sql.store.link import connect
from qinglong_sql.store.pooled import PooledStore, open_pool
from qinglong_sql.store.postgres import PostgresStore, open_postgres_store
from qinglong_sql.store.steps import STEPS
from tests import acting, pgbouncer
from tests.controls import Process
from tests.lives import Lived
from tests.pgbouncer import CONNECT, Pooler
from tests.server import Server
from tests.shell import Shell
from tests.site import wait
from tests.stores import ServerClock

MANY = 40  # more than a pool of it has
READY = re.compile(r"\bready$", re.M)


@pytest.fixture
def pooler(postgres_server: Server) -> Pooler:
    return pgbouncer.of(postgres_server)


def name_of(dsn: str) -> str:
    return dsn.rpartition("/")[2]


def test_every_step_goes_through_it_each_in_a_session_without_a_past(
    postgres_dsn: str, pooler: Pooler
) -> None:
    with contextlib.ExitStack() as stack:
        clock = stack.enter_context(contextlib.closing(ServerClock(postgres_dsn)))
        store = stack.enter_context(contextlib.closing(open_postgres_store(postgres_dsn)))
        before, called = pooler.figures(name_of(postgres_dsn)), []
        life = Lived(clock)
        for act, (step, params) in life.acts():
            life.learn(act, store.call(step, **params))
            called.append(step)
        assert set(called) == STEPS.keys()
        assert acting.unbroken(store)
    after = pooler.figures(name_of(postgres_dsn))
    assert after["transactions"] - before["transactions"] >= len(called) + 1


def test_more_stores_than_sessions(postgres_dsn: str, pooler: Pooler) -> None:
    with contextlib.ExitStack() as stack:
        stores = [
            stack.enter_context(contextlib.closing(PostgresStore(postgres_dsn)))
            for _ in range(MANY)
        ]
        acting.publish(stores[0], {"a": []})
        runs = [acting.start(one) for one in stores]
        assert [acting.run_row(stores[-1], run_id)["status"] for run_id in runs] == [
            "running"
        ] * MANY
        rows = [row for row in pooler.show("servers") if row["database"] == name_of(postgres_dsn)]
        assert 1 <= len(rows) < MANY


def test_a_pool_of_a_control_process(postgres_dsn: str) -> None:
    pool = open_pool(postgres_dsn, size=3, within_s=10)
    try:
        store = PooledStore(pool)
        store.check()
        acting.publish(store, {"a": []})
        for _ in range(12):
            run_id = acting.start(store)
            acting.admit(store, run_id)
            assert acting.statuses(store, run_id)
    finally:
        pool.close()


@pytest.fixture
def login(postgres_server: Server, postgres_dsn: str) -> Iterator[str]:
    """A DSN of a login of a control process."""
    with psycopg.connect(postgres_dsn, autocommit=True) as dba:
        dba.execute("create role controls login in role ql_scheduler, ql_reader")
        try:
            yield f"postgresql://controls@{postgres_dsn.rpartition('@')[2]}"
        finally:
            dba.execute("drop role controls")


def test_a_control_process_boots_works_and_stops(
    login: str, postgres_dsn: str, tmp_path: Path
) -> None:
    said = tmp_path / "said"

    def told() -> str:
        return said.read_text(encoding="utf-8")

    shell = Shell(tmp_path, login)
    with contextlib.closing(open_postgres_store(postgres_dsn)) as store:
        acting.publish(store, {"a": []})
        control = shell.begin("control", "--listen", "127.0.0.1:0", output=said)
        try:
            wait(lambda: READY.search(told()) or control.poll() is not None, "it is ready", 30)
            assert control.poll() is None, told()
            for _ in range(8):  # any of them may ask the same for the sixth time
                run_id = acting.start(store)
                wait(lambda run=run_id: store.read("attempt_state", run_id=run), "admitted", 10)
                time.sleep(0.1)
            control.send_signal(signal.SIGTERM)
            assert control.wait(30) == 0, told()
        finally:
            control.kill()
            control.wait(5)
    assert "error" not in told().lower(), told()


def test_a_login_and_its_database_are_looked_at_through_it(
    login: str, postgres_dsn: str, pooler: Pooler, tmp_path: Path
) -> None:
    """`assert_ready` and `doctor`: all is right, and then a drift, which is named."""
    shell, before = Shell(tmp_path, login), pooler.figures(name_of(postgres_dsn))
    with contextlib.closing(open_pool(login, size=2, within_s=10)) as pool:
        with pool.connection() as connection:
            found = assert_ready(connection, CONTROL_GROUPS)
        assert found.writable and found.server == pooler.server.binaries.version
        well = shell.process("doctor", "--dsn", login)
        assert well.returncode == 0, well.stderr
        assert f"schema: {found}" in well.stdout.splitlines()
        with psycopg.connect(postgres_dsn, autocommit=True) as dba:
            dba.execute("grant insert on ql.run to ql_reader")
        drift = (
            "table ql.run: ql_reader has INSERT too many: revoke insert on ql.run from ql_reader"
        )
        with pytest.raises(Unready) as caught, pool.connection() as connection:
            assert_ready(connection, CONTROL_GROUPS)
        assert caught.value.wrong == (drift,)
    for command, way in (("doctor", ""), ("control", "readiness: ")):
        more = ("--listen", "127.0.0.1:0") if command == "control" else ()
        done = shell.process(command, "--dsn", login, *more)
        assert done.returncode == 6, done.stderr
        assert done.stderr.strip().endswith(f"not ready: {way}QL503 {drift}"), done.stderr
    after = pooler.figures(name_of(postgres_dsn))
    assert after["transactions"] - before["transactions"] >= 10, "nothing went around it"


# application_name is what pgbouncer itself gives each client's transactions
HELD = """
  select 'setting ' || s.name || ' ' || s.setting from pg_settings as s
    where s.source = 'session' and s.name <> 'application_name'
  union all select 'prepared ' || p.statement from pg_prepared_statements as p
  union all select 'listens ' || c from pg_listening_channels() as c
  union all select 'lock ' || l.objid::text from pg_locks as l
    where l.locktype = 'advisory' and l.pid = pg_backend_pid()
  union all select 'table ' || c.relname from pg_class as c where c.relpersistence = 't'
  order by 1"""


def test_who_gets_a_session_after_it_finds_nothing_in_it(
    login: str, postgres_dsn: str, postgres_server: Server, tmp_path: Path
) -> None:
    """Nothing is taken from its sessions here, and there is one for all."""
    one = pgbouncer.in_front_of(postgres_server, reset="", sessions=1)
    shared = login.replace(f":{postgres_server.entry}/", f":{one.entry}/")

    def held() -> tuple[int, list[str]]:
        with contextlib.closing(CONNECT(shared, autocommit=True)) as connection:
            rows = connection.execute(f"select pg_backend_pid(), array({HELD})").fetchall()
        return rows[0]

    before = held()
    with contextlib.closing(open_postgres_store(postgres_dsn)) as store:
        acting.publish(store, {"a": []})
        run_id = acting.start(store)
        with contextlib.closing(Process(shared, tmp_path)) as control:
            control.ready().until(lambda: store.read("attempt_state", run_id=run_id), "admitted")
            assert control.stop() == 0, control.text()
    assert Shell(tmp_path, shared).process("doctor", "--dsn", shared).returncode == 0
    assert held() == before, "the same session, as it was"
    with contextlib.closing(CONNECT(shared, autocommit=True)) as connection:
        connection.execute("set jit = off")
        connection.execute("select pg_advisory_lock(7)")
    assert {"lock 7", "setting jit off"} <= set(held()[1]) - set(before[1]), "it would be seen"


# --- teeth: what would not work is noticed


def test_a_prepared_statement_is_gone(postgres_dsn: str) -> None:
    with contextlib.closing(PostgresStore(postgres_dsn, prepare_threshold=0)) as store:
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            for _ in range(3):
                store.call("due_page", p_stage="retry", p_after_due_at_ms=0, p_after_run_id="",
                           p_limit=1)  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "asked", "value"),
    [
        ("set lock_timeout = '7s'", "show lock_timeout", "7s"),
        ("set search_path = ql", "show search_path", "ql"),
        ("listen news", "select count(*)::text from pg_listening_channels()", "1"),
        ("select pg_advisory_lock(7)", "select count(*)::text from pg_locks where locktype ="
         " 'advisory' and pid = pg_backend_pid()", "1"),
        ("create temp table kept ()", "select count(*)::text from pg_class"
         " where relname = 'kept'", "1"),
    ],
)  # fmt: skip
def test_what_a_session_would_keep_is_gone(
    kept: str, asked: str, value: str, postgres_dsn: str
) -> None:
    with contextlib.closing(CONNECT(postgres_dsn, autocommit=True)) as connection:
        connection.execute(kept)
        row = connection.execute(asked, prepare=False).fetchone()
    assert row is not None and row[0] != value


def test_nobody_goes_around_it(postgres_dsn: str, postgres_server: Server) -> None:
    around = postgres_dsn.replace(f":{postgres_server.entry}/", f":{postgres_server.port}/")
    with pytest.raises(AssertionError, match="goes around"):
        open_postgres_store(around)


def test_what_is_asked_often_is_not_prepared(postgres_dsn: str) -> None:
    """psycopg's own default prepares the sixth; so was lost whom a migration waits for."""
    with connect(postgres_dsn, autocommit=True) as connection:
        for number in range(8):
            connection.execute("select %s::int", [number])
        assert connection.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)
