"""A PostgreSQL database that is not exactly as shipped, or a login that may too much or too little,
is refused with words that name the object and the way out (DESIGN §7, §8)."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from qinglong_sql import migrate, readiness
from qinglong_sql.errors import MESSAGE_CHARS, NotReady
from qinglong_sql.readiness import CONTROL_GROUPS, Unready, assert_ready, assert_shipped
from qinglong_sql.store import catalog
from scripts import shipped
from tests import engines
from tests.clusters import Cluster
from tests.engines import NEWEST
from tests.server import SQL_ROOT, Server, dsn, stop, tool
from tests.shell import Shell
from tests.spoiled import FREE, LOGIN, SPOILED, STRANGER

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def doors() -> Iterator[dict[Server, tuple[str, Connection]]]:
    """A database of each server that all spoilings share, since each is rolled back."""
    made: dict[Server, tuple[str, Connection]] = {}
    yield made
    for server, (url, dba) in made.items():
        dba.execute(f"drop role {LOGIN}, {STRANGER}".encode())
        dba.close()
        engines.drop_postgres(server, url)


@pytest.fixture
def door(postgres_server: Server, doors: dict[Server, tuple[str, Connection]]) -> tuple[str, Any]:
    """The shared database, and its DBA; roles for a control process and for somebody else."""
    if postgres_server not in doors:
        url = engines.fresh_postgres(postgres_server)
        dba = psycopg.connect(url, autocommit=True)
        for name in (LOGIN, STRANGER):
            dba.execute(f"create role {name} login".encode())
        dba.execute(f"grant {', '.join(CONTROL_GROUPS)} to {LOGIN}".encode())
        doors[postgres_server] = url, dba
    return doors[postgres_server]


@pytest.fixture
def dba(door: tuple[str, Connection]) -> Connection:
    return door[1]


def spoil(dba: Connection, text: str) -> Unready | None:
    """Do it, ask as the login of a control process, and undo it."""
    said = None
    with dba.transaction(force_rollback=True):
        dba.execute(text.encode())
        dba.execute(f"set local session authorization {LOGIN}".encode())
        try:
            assert_ready(dba, CONTROL_GROUPS)
        except Unready as error:
            said = error
    return said


def as_login(server: Server, url: str, **how: Any) -> Connection:
    return psycopg.connect(dsn(server, url.rsplit("/", 1)[1], LOGIN), **how)


def installed(server: Server, url: str, revision: str = "head") -> None:
    """Both are done in an empty database: role.sql by a DBA, and the migrations."""
    role = str(SQL_ROOT / "postgres" / "role.sql")
    tool(server, "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", url, "-f", role)
    migrate.upgrade(url, revision)


@pytest.mark.parametrize(("text", "words"), SPOILED.values(), ids=SPOILED.keys())
def test_what_is_not_as_shipped_is_refused_with_its_name(
    dba: Connection, text: str, words: str
) -> None:
    error = spoil(dba, text)
    assert error is not None, "nothing was found"
    told = [str(error), *error.wrong]
    assert any(words in one for one in told), told
    assert str(error).startswith("QL503 ") and len(str(error)) <= MESSAGE_CHARS + 10
    assert error.wrong[0] in str(error)


@pytest.mark.parametrize("text", FREE.values(), ids=FREE.keys())
def test_what_a_dba_may_do_is_no_difference(dba: Connection, text: str) -> None:
    error = spoil(dba, text)
    assert error is None, error


def test_one_change_is_told_once(dba: Connection) -> None:
    """Else a message is full before it says all."""
    for name in ("a body", "a view reads less", "a column is added", "a table is read"):
        error = spoil(dba, SPOILED[name][0])
        assert error is not None and len(error.wrong) == 1, error


def test_many_differences_are_counted(dba: Connection) -> None:
    error = spoil(dba, f"grant select on all tables in schema ql to {STRANGER}")
    assert error is not None and len(error.wrong) > 60
    named = str(error).count(" too many: revoke")
    assert named > 3 and str(error).endswith(f"; and {len(error.wrong) - named} more")


def test_what_the_manifest_installs_is_as_shipped(
    postgres_server: Server, door: tuple[str, Connection]
) -> None:
    """As the unprivileged login, whatever its session is like, and the session stays as it was."""
    with as_login(postgres_server, door[0], row_factory=dict_row) as connection:
        connection.execute("set search_path = ql, public; set quote_all_identifiers = on")
        connection.commit()
        found = assert_ready(connection, CONTROL_GROUPS)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert connection.execute("show search_path").fetchone() == {"search_path": "ql, public"}
    assert found.server == postgres_server.binaries.version
    assert (found.writable, found.revision, found.not_compared) == (True, None, ())
    state = readiness.shipped_state()
    unstamped = [name for name in state["objects"] if migrate.VERSION_SCHEMA not in name]
    assert found.object_count == len(unstamped) > 350
    assert str(found) == f"{len(unstamped)} objects, bodies and rights are the shipped ones"


def test_what_the_migrations_install_is_as_shipped(
    postgres_server: Server, empty_dsn: str, dba: Connection
) -> None:
    """A login reads the stamp; somebody who may write it is one too many."""
    installed(postgres_server, empty_dsn)
    with as_login(postgres_server, empty_dsn, autocommit=True) as connection:
        found = assert_ready(connection, CONTROL_GROUPS)
        assert (found.revision, found.object_count) == (
            NEWEST, len(readiness.shipped_state()["objects"])
        )  # fmt: skip
    with psycopg.connect(empty_dsn, autocommit=True) as admin:
        assert assert_shipped(admin).revision == NEWEST
        with pytest.raises(Unready, match="login postgres is a superuser"):
            assert_ready(admin, CONTROL_GROUPS)
        text = f"grant update on {migrate.VERSION_SCHEMA}.alembic_version to {STRANGER}"
        assert "has UPDATE too many" in str(spoil(admin, text))
        text = f"update {migrate.VERSION_SCHEMA}.alembic_version set version_num = '0999'"
        admin.execute(text.encode())
        admin.execute("drop function ql_operator.drain_worker(text)")
        newer = f"revision 0999, and this release knows {NEWEST}.*install the release that migrated"
        with pytest.raises(Unready, match=newer):
            assert_shipped(admin)
        with (
            as_login(postgres_server, empty_dsn, autocommit=True) as connection,
            pytest.raises(Unready, match=newer),
        ):
            assert_ready(connection, CONTROL_GROUPS)


def test_an_older_revision_is_told_to_whoever_asks(
    postgres_server: Server, empty_dsn: str, dba: Connection
) -> None:
    """The stamp says it to a DBA; to a login, the objects that are there."""
    installed(postgres_server, empty_dsn, "0001")
    words = f"QL503 the database stands at revision 0001, and {NEWEST} is the newest:"
    with as_login(postgres_server, empty_dsn, autocommit=True) as connection:
        with pytest.raises(Unready) as caught:
            assert_ready(connection, CONTROL_GROUPS)
        assert str(caught.value) == f"{words} `qinglong-sql migrate`"
    with psycopg.connect(empty_dsn, autocommit=True) as admin:
        with pytest.raises(Unready, match=words):
            assert_shipped(admin)


def test_a_database_of_somebody_else_has_no_schema_of_ours(
    postgres_server: Server, empty_dsn: str, dba: Connection
) -> None:
    with as_login(postgres_server, empty_dsn, autocommit=True) as connection:
        with pytest.raises(Unready, match="has no schema of ours: `qinglong-sql migrate`"):
            assert_ready(connection, CONTROL_GROUPS)


def test_a_read_only_server_is_refused_before_anything_else(
    postgres_server: Server, empty_dsn: str, dba: Connection
) -> None:
    name = empty_dsn.rsplit("/", 1)[1]
    dba.execute(f"alter database {name} set default_transaction_read_only = on".encode())
    with as_login(postgres_server, empty_dsn, autocommit=True) as connection:
        with pytest.raises(NotReady) as caught:
            assert_ready(connection, CONTROL_GROUPS)
        assert "sessions are read-only here (default_transaction_read_only)" in str(caught.value)
        assert f"alter database {name} reset" in str(caught.value)
        with pytest.raises(Unready, match="no schema of ours"):  # people may look at a standby
            assert_shipped(connection)


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_another_isolation_is_refused_with_the_way_out(
    postgres_server: Server, empty_dsn: str, dba: Connection, isolation: str
) -> None:
    name = empty_dsn.rsplit("/", 1)[1]
    made = f"alter database {name} set default_transaction_isolation = '{isolation}'"
    dba.execute(made.encode())
    with as_login(postgres_server, empty_dsn, autocommit=True) as connection:
        for ask in (assert_shipped, lambda one: assert_ready(one, CONTROL_GROUPS)):
            with pytest.raises(Unready, match=f"sessions are {isolation} here") as caught:
                ask(connection)
            assert f"alter database {name} reset default_transaction_iso" in str(caught.value)


@pytest.mark.parametrize("majors", [range(10, 15), range(19, 21)])
def test_a_server_of_another_version_is_refused(
    door: tuple[str, Connection], monkeypatch: pytest.MonkeyPatch, majors: range
) -> None:
    """On both sides: the range moves instead of the server. test_control_version has a real 14."""
    monkeypatch.setattr(readiness, "MAJORS", majors)
    said = f"use one from {majors[0]} to {majors[-1]}"
    error = spoil(door[1], "select 1")
    assert error is not None and str(error).startswith("QL503 the server is PostgreSQL 1")
    assert str(error).endswith(said)


def test_readiness_is_for_15_to_18() -> None:
    assert list(readiness.MAJORS) == [15, 16, 17, 18]


def test_a_standby_is_refused(request: pytest.FixtureRequest) -> None:
    """It is one that follows nobody."""
    cluster = Cluster(Path(tempfile.gettempdir()), {})
    made = cluster.made
    request.addfinalizer(lambda: stop(cluster.made))
    made.child.send_signal(signal.SIGINT)
    made.child.wait()
    sign = made.scratch / "data" / "standby.signal"
    sign.touch()
    os.chown(sign, (made.scratch / "data").stat().st_uid, -1)
    cluster.restart()
    with psycopg.connect(cluster.address, autocommit=True) as connection:
        with pytest.raises(Unready, match="the server is in recovery, a standby: let the DSN name"):
            assert_ready(connection, CONTROL_GROUPS)


def test_people_may_look_with_any_login(
    postgres_server: Server, door: tuple[str, Connection]
) -> None:
    name = door[0].rsplit("/", 1)[1]
    with psycopg.connect(dsn(postgres_server, name, STRANGER), autocommit=True) as connection:
        assert assert_shipped(connection) == assert_shipped(door[1])


def test_a_right_that_must_be_put_on_is_none(dba: Connection) -> None:
    text = f"alter role {LOGIN} noinherit"
    if dba.info.server_version >= 160000:
        text = f"grant ql_reader to {LOGIN} with inherit false"
    error = spoil(dba, text)
    assert error is not None and "lacks the rights of ql_reader" in str(error)


def test_a_migration_that_runs_is_not_waited_for(
    postgres_server: Server, door: tuple[str, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert catalog._STAND.count("'lock_timeout', '5s'") == 1
    monkeypatch.setattr(catalog, "_STAND", catalog._STAND.replace("'5s'", "'20ms'"))
    with as_login(postgres_server, door[0], autocommit=True) as connection:
        with door[1].transaction():
            door[1].execute("lock table ql.run in access exclusive mode")
            with pytest.raises(NotReady, match="being changed, by a migration perhaps: look again"):
                assert_ready(connection, CONTROL_GROUPS)
        assert_ready(connection, CONTROL_GROUPS)


# -- majors


def test_what_a_major_prints_is_not_compared_where_nobody_knows_it(
    dba: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored still is: rights, columns, and what a view reads."""
    state = json.loads(json.dumps(readiness.shipped_state()))
    here = str(dba.info.server_version // 10_000)
    printed = {name: one["printed"] for name, one in state["objects"].items() if "printed" in one}
    unknown = [name for name, one in printed.items() if isinstance(one.get("definition"), dict)]
    assert len(unknown) > 20 and "view ql.run_state" in unknown
    for name in unknown:
        del printed[name]["definition"][here]
    monkeypatch.setattr(readiness, "shipped_state", lambda: state)
    found = assert_shipped(dba)
    assert set(found.not_compared) == set(unknown)
    assert f"of {len(unknown)} only columns, rights and what they read was compared" in str(found)
    same = "do $$ begin execute 'create or replace view ql.{0} as '"
    same += " || rtrim(pg_get_viewdef('ql.{0}'), ';') || ' {1}'; end $$"
    assert spoil(dba, same.format("fault_state", "limit 5")) is None
    reads = spoil(dba, same.format("fault_state", "where exists (select from ql.package)"))
    assert reads is not None and "view ql.fault_state: what it reads is changed" in str(reads)
    assert spoil(dba, SPOILED["a view is not read"][0]) is not None


def test_only_of_views_may_a_major_be_unknown() -> None:
    """What they read is compared in place of their text; before a release it should be measured,
    with PG_BINDIR=…/16/bin:…/17/bin python -m scripts.golden."""
    objects = readiness.shipped_state()["objects"]
    unknown = [name for name, one in objects.items() if not shipped.is_complete(one)]
    assert [name for name in unknown if not name.startswith("view ")] == []


@pytest.mark.parametrize(
    ("now", "before", "kept"),
    [
        ({15: "a", 18: "b"}, {"15": "a", "16": "c", "17": "c", "18": "b"},
         {"15": "a", "16": "c", "17": "c", "18": "b"}),
        ({15: "a", 18: "x"}, {"15": "a", "16": "c", "17": "c", "18": "b"}, {"15": "a", "18": "x"}),
        ({18: "b"}, {"15": "a", "16": "c", "17": "c", "18": "b"},
         {"15": "a", "16": "c", "17": "c", "18": "b"}),
        ({18: "x"}, {"15": "a", "16": "c", "17": "c", "18": "b"}, {"18": "x"}),
        ({15: "a", 18: "a"}, {}, "a"),
        ({15: "a", 18: "b"}, "a", {"15": "a", "18": "b"}),
        ({18: "a"}, "a", "a"),
        ({18: "b"}, "a", {"18": "b"}),
        ({15: "a", 16: "c", 17: "a", 18: "a"}, {}, {"15": "a", "16": "c", "17": "a", "18": "a"}),
    ],
)  # fmt: skip
def test_what_an_absent_major_prints_is_kept_while_the_others_print_the_same(
    now: dict[int, str], before: Any, kept: Any
) -> None:
    assert shipped.prints({str(major): one for major, one in now.items()}, before) == kept


# -- doctor


def test_doctor_compares_and_names_what_differs(
    postgres_server: Server, postgres_dsn: str, dba: Connection, tmp_path: Path
) -> None:
    name = postgres_dsn.rsplit("/", 1)[1]
    shell = Shell(tmp_path, dsn(postgres_server, name, LOGIN))
    done = shell("doctor")
    assert done.returncode == 0, done.stderr
    assert "objects, bodies and rights are the shipped ones\n" in done.stdout
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(SPOILED["a body"][0].encode())
    done = shell("doctor")
    assert done.returncode == 6
    assert "function ql.lock_run(p_run_id text): body is changed" in done.stderr
