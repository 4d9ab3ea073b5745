"""Every road leads to the same schema: alembic, the manifest, the offline script (DESIGN §10)."""

import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from qinglong_sql import migrate
from qinglong_sql.errors import NotReady
from qinglong_sql.store.postgres import PostgresStore
from scripts import freeze, frozen, golden
from tests import engines
from tests.catalog import catalog
from tests.engines import NEWEST
from tests.server import SQL_ROOT, Server, dsn, tool
from tests.shell import Shell
from tests.upgrading import roles

pytestmark = pytest.mark.all_versions
Make = Callable[[], str]


@pytest.fixture
def make_empty(postgres_server: Server) -> Iterator[Make]:
    """Empty databases in which the DBA has run role.sql."""
    made: list[str] = []

    def make() -> str:
        made.append(engines.fresh_postgres(postgres_server, template=None))
        psql(postgres_server, made[-1], SQL_ROOT / "postgres" / "role.sql")
        return made[-1]

    yield make
    for url in made:
        engines.drop_postgres(postgres_server, url)


def psql(server: Server, url: str, script: Path) -> None:
    tool(server, "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", url, "-f", str(script))


def migrator(server: Server, url: str) -> str:
    """The same database as the login ql_migrator, who is no superuser."""
    return dsn(server, url.rsplit("/", 1)[1], user="ql_migrator")


def schema(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "select type, name, tbl_name, sql from sqlite_schema"
            " where tbl_name <> 'alembic_version' order by type, name"
        ).fetchall()


def stamps(path: Path) -> tuple[int, list[tuple[str]], int]:
    with closing(sqlite3.connect(path)) as connection:
        number = connection.execute("pragma user_version").fetchone()[0]
        rows = connection.execute("select version_num from alembic_version").fetchall()
        return number, rows, connection.execute("pragma page_size").fetchone()[0]


def test_frozen_text_is_what_the_living_tree_gives(capsys: pytest.CaptureFixture[str]) -> None:
    assert freeze.main(["--check"]) == 0, capsys.readouterr().out


def test_a_stale_frozen_text_is_told_with_its_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert freeze.main(["--versions", str(tmp_path)]) == 0
    assert freeze.main(["--versions", str(tmp_path), "--check"]) == 0
    path = tmp_path / "0001_core.postgres.sql"
    path.write_text(path.read_text().replace("create schema ql ", "create schema qx ", 1))
    assert freeze.main(["--versions", str(tmp_path), "--check"]) == 1
    assert "+create schema ql " in capsys.readouterr().out


def test_three_roads_lead_to_one_postgres_schema(
    postgres_server: Server, postgres_dsn: str, make_empty: Make, tmp_path: Path
) -> None:
    online, offline = make_empty(), make_empty()
    assert migrate.upgrade(migrator(postgres_server, online)) == NEWEST
    script = tmp_path / "offline.sql"
    script.write_text(migrate.offline_sql("postgres"))
    psql(postgres_server, migrator(postgres_server, offline), script)

    expected = catalog(postgres_dsn)
    assert expected["function"]
    assert expected["relation"]
    assert catalog(online) == expected
    assert catalog(offline) == expected
    text = golden.postgres_text(postgres_server, postgres_dsn)
    assert golden.postgres_text(postgres_server, online) == text
    assert golden.postgres_text(postgres_server, offline) == text
    assert migrate.current(offline) == NEWEST
    if postgres_server.binaries.version == golden.MADE_WITH:
        assert (golden.GOLDEN / "golden.sql").read_text() == text


def test_function_bodies_arrive_as_they_were_written(
    postgres_server: Server, make_empty: Make
) -> None:
    url = make_empty()
    migrate.upgrade(url)
    written = "".join(path.read_text() for path in (SQL_ROOT / "postgres").glob("*.sql"))
    with psycopg.connect(url) as connection:
        bodies = connection.execute(
            "select p.oid::regprocedure::text, p.prosrc from pg_proc as p"
            " where p.pronamespace::regnamespace::text ~ '^ql' and p.prolang <>"
            " (select oid from pg_language where lanname = 'c')"
        ).fetchall()
    assert bodies
    assert [name for name, body in bodies if body not in written] == []


def test_an_upgrade_twice_or_by_two_at_once_is_one_upgrade(
    postgres_server: Server, make_empty: Make
) -> None:
    url = make_empty()
    script = (
        "from qinglong_sql import migrate\n"
        f"print(migrate.upgrade({migrator(postgres_server, url)!r}))"
    )
    pair = [  # processes, since alembic has one context a process
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [one.communicate() for one in pair] == [(f"{NEWEST}\n", "")] * 2
    assert migrate.upgrade(url) == NEWEST


def test_a_database_in_which_role_sql_was_not_run_is_not_ready(empty_dsn: str) -> None:
    with pytest.raises(NotReady, match="may not create schemas"):
        migrate.upgrade(empty_dsn)
    assert migrate.current(empty_dsn) is None


def test_the_way_back_leaves_nothing_and_the_way_forth_is_open_again(
    postgres_server: Server, make_empty: Make
) -> None:
    url = make_empty()
    before = catalog(url)
    migrate.upgrade(url)
    there = catalog(url)
    migrate.downgrade(migrator(postgres_server, url))
    assert catalog(url) == before
    assert migrate.current(url) is None
    migrate.upgrade(url)
    assert catalog(url) == there


def test_four_roads_lead_to_one_sqlite_schema(tmp_path: Path) -> None:
    light, full, offline, manifest = (tmp_path / f"{name}.db" for name in "abcd")
    assert migrate.upgrade(f"sqlite:///{light}") == NEWEST
    migrate.run_alembic(f"sqlite:///{full}", "upgrade", "head")
    shell(offline, migrate.offline_sql("sqlite"))
    shell(manifest, f".read {frozen.MANIFEST['sqlite']}\n")
    expected = schema(light)
    assert len([kind for kind, *_ in expected if kind == "view"]) > 10
    for path in (full, offline, manifest):
        assert schema(path) == expected
    assert stamps(light) == stamps(full) == stamps(offline) == (int(NEWEST), [(NEWEST,)], 1024)
    assert (golden.GOLDEN / "golden.sqlite.sql").read_text() == golden.sqlite_text(light)


def shell(path: Path, script: str) -> None:
    """Feed the sqlite3 shell from the folder of the manifest."""
    program = shutil.which("sqlite3")
    assert program, "no sqlite3 shell on PATH (apt-get install sqlite3)"
    done = subprocess.run(
        [program, "-bail", path], cwd=SQL_ROOT, input=script, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_device_needs_neither_alembic_nor_sqlalchemy_nor_psycopg(tmp_path: Path) -> None:
    script = (
        "import sys; from qinglong_sql import migrate\n"
        f"migrate.upgrade('sqlite:///{tmp_path}/d.db')\n"
        "print(sorted({'alembic', 'sqlalchemy', 'psycopg'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "damage",
    [
        "pragma user_version = 0",
        "pragma user_version = 77",
        "update alembic_version set version_num = '0009'",
        "delete from alembic_version",
        "drop table alembic_version",
    ],
)
@pytest.mark.parametrize("road", ["upgrade", "current", "alembic"])
def test_two_stamps_that_disagree_are_not_ready(tmp_path: Path, damage: str, road: str) -> None:
    url = f"sqlite:///{tmp_path}/d.db"
    migrate.upgrade(url)
    with closing(sqlite3.connect(tmp_path / "d.db", isolation_level=None)) as connection:
        connection.execute(damage)
    with pytest.raises(NotReady, match="QL503"):
        if road == "alembic":
            migrate.run_alembic(url, "upgrade", "head")
        else:
            getattr(migrate, road)(url)


def test_a_file_with_tables_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "d.db", isolation_level=None)) as connection:
        connection.execute("create table song (title text)")
    before = (tmp_path / "d.db").read_bytes()
    with pytest.raises(NotReady, match="QL503"):
        migrate.upgrade(f"sqlite:///{tmp_path}/d.db")
    assert (tmp_path / "d.db").read_bytes() == before


def test_an_installation_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    with pytest.raises(sqlite3.OperationalError, match="no_such"):
        migrate.install_sqlite(path, "create table t (a text);\ninsert into no_such values (1);\n")
    assert schema(path) == []
    assert migrate.current(f"sqlite:///{path}") is None
    assert migrate.upgrade(f"sqlite:///{path}") == NEWEST


def test_the_way_back_empties_a_sqlite_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/d.db"
    migrate.upgrade(url)
    there = schema(tmp_path / "d.db")
    migrate.downgrade(url)
    assert schema(tmp_path / "d.db") == []
    assert migrate.current(url) is None
    migrate.upgrade(url)
    assert schema(tmp_path / "d.db") == there


def test_statements_keep_triggers_whole_and_drop_bare_comments() -> None:
    text = (
        "-- alone\ncreate table t (a text);\n\n-- why\ncreate trigger x before insert on t\n"
        "when case new.a when ';' then 1 else 0 end\nbegin\n"
        "  select raise(abort, 'no; end;');\n  select 2;\nend;\n-- last\n"
    )
    found = list(migrate.statements(text))
    assert [re.split(r"\s+", one)[:2] for one in found] == [
        ["create", "table"],
        ["create", "trigger"],
    ]
    assert found[1].endswith("select 2;\nend;")
    with pytest.raises(ValueError, match="without an end"):
        list(migrate.statements("create table t (a text)"))


def test_the_script_begins_where_the_database_stands(tmp_path: Path) -> None:
    """`migrate --sql --from`: what a change ticket holds when there is a database already."""
    shell = Shell(tmp_path, "postgresql://nobody@127.0.0.1:1/nothing")  # it connects nowhere
    whole, rest = shell("migrate", "--sql"), shell("migrate", "--sql", "--from", "0003")
    assert (whole.returncode, rest.returncode) == (0, 0), rest
    assert "create table ql.run (" in whole.stdout and "create table ql.run (" not in rest.stdout
    assert "version_num='0004'" in rest.stdout and "version_num='0003'" not in rest.stdout
    only = shell("migrate", "--sql", "--from", "0002", "--to", "0003").stdout
    assert "version_num='0003'" in only and "version_num='0004'" not in only
    for words, said in (
        (("--from", "0003"), "--from goes with --sql"),
        (("--sql", "--from", "0002", "--to", "0001"), "a later revision in --to"),
        (("--sql", "--from", "0009"), "nothing is printed from '0009'"),
    ):
        done = shell("migrate", *words)
        assert done.returncode == 5 and said in " ".join(done.stderr.split()), done


def test_a_schema_that_is_too_old_is_told_with_its_revision(
    empty_dsn: str, postgres_server: Server
) -> None:
    roles(postgres_server, empty_dsn)
    migrate.upgrade(empty_dsn, "0001")
    with closing(PostgresStore(empty_dsn)) as store:
        with pytest.raises(NotReady, match=r"stands at revision 0001 and lacks \d+ of \d+ steps"):
            store.check()
