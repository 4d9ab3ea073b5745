"""Bring a database to a revision: alembic for PostgreSQL, a light installer for SQLite.

Both run the same frozen text of `migrations/versions/` (DESIGN §10). Nothing here imports alembic
or SQLAlchemy until PostgreSQL, offline SQL or a way back is asked for: a device has neither. On
SQLite `pragma user_version` and `alembic_version` are written in one transaction by both ways;
when they disagree, someone else has been at the file, and everything answers QL503.
"""

import io
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import qinglong_sql
from qinglong_sql.errors import Malformed, NotReady, error_of
from qinglong_sql.limits import SQLITE_BUSY_MS, SQLITE_PAGE_BYTES
from qinglong_sql.whole_file import owners_alone

if TYPE_CHECKING:
    from alembic.config import Config

Engine = Literal["postgres", "sqlite"]
SQLITE = "sqlite:///"
SCHEMAS = (
    "ql_admission",
    "ql_scheduler",
    "ql_worker",
    "ql_operator",
    "ql_retention",
    "ql",
)
VERSION_SCHEMA = "ql_migration"  # apart from ql, so that the way back may drop ql
ALEMBIC_TABLE = """create table alembic_version (
  version_num varchar(32) not null,
  constraint alembic_version_pkc primary key (version_num)
)"""


def upgrade(dsn: str, revision: str = "head", note: Callable[[str], object] | None = None) -> str:
    """Bring a database to a revision ("0001", "head") and return where it stands then.

    The DSN is `sqlite:///path` or `postgresql://…`. note: told for whom it waits more than two
    seconds. Raises NotReady (QL503) when the database is not one of ours, not where it says it is,
    or not in UTF-8, when rows in it would break a new rule, and when a lock is not to be had in
    time, with who has it: nothing was changed then. Raises link.InDoubt (psycopg's) when no standby
    has it.
    """
    if dsn.startswith(SQLITE):
        return upgrade_sqlite(Path(dsn.removeprefix(SQLITE)), revision)
    from qinglong_sql.encoding import assert_utf8
    from qinglong_sql.migrate_rows import assert_fits

    assert_utf8(dsn)
    assert_fits(dsn, current(dsn), revision)
    run_alembic(dsn, "upgrade", revision, note=note)
    from qinglong_sql.store.link import confirm

    confirm(dsn)
    return current(dsn) or ""


def downgrade(dsn: str, revision: str = "base", *, drop_rows: bool = False) -> None:
    """Go back to `base`, which drops everything that 0001 and later revisions made.

    Raises Malformed (QL400) for any other revision, to none of which there is a way back, and when
    there are rows and `drop_rows` does not say that they may go; NotReady as `upgrade` for a lock.
    """
    try:
        run_alembic(dsn, "downgrade", revision, drop_rows=drop_rows)
    except NotImplementedError as error:
        raise Malformed(f"there is no way back to {revision}: {error}") from error


def current(dsn: str) -> str | None:
    """The revision a database stands at; None when it is empty. Raises NotReady as `upgrade`."""
    if dsn.startswith(SQLITE):
        path = Path(dsn.removeprefix(SQLITE))
        if not path.exists():
            return None
        with closing(open_sqlite(path)) as connection:
            return stands_at(connection)
    from qinglong_sql.store.link import connect

    table = f"{VERSION_SCHEMA}.alembic_version"
    with connect(dsn, autocommit=True) as connection:
        there = connection.execute("select to_regclass(%s) is not null", [table]).fetchone()
        if there != (True,):
            return None
        row = connection.execute(f"select version_num from {table}").fetchone()
    return None if row is None else str(row[0])


def offline_sql(engine: Engine, span: str = "base:head") -> str:
    """The script that `upgrade` would run, for a change ticket; applied with psql or sqlite3.

    span: `from:to`, such as "0002:0003".
    """
    from alembic import command

    config = _config(engine)
    sink = io.StringIO()
    config.attributes["sink"] = sink
    command.upgrade(config, span, sql=True)
    return sink.getvalue()


def run_alembic(
    dsn: str,
    action: Literal["upgrade", "downgrade", "stamp"],
    revision: str,
    *,
    note: Callable[[str], object] | None = None,
    drop_rows: bool = False,
) -> None:
    """Run one of alembic's commands on either engine, with the environment in `migrations/`.

    What the SQL refuses with a code of ours is raised as that error, such as NotReady; so is a lock
    that is not to be had. `note` as of `upgrade`, `drop_rows` as of `downgrade`.
    """
    from alembic import command
    from sqlalchemy.exc import DBAPIError

    config = _config("sqlite" if dsn.startswith(SQLITE) else "postgres")
    config.attributes |= {"dsn": dsn, "drop_rows": drop_rows}
    act = partial(getattr(command, action), config, revision)
    try:
        if dsn.startswith(SQLITE):
            act()
        else:
            from qinglong_sql.migrate_wait import watched

            watched(act, config.attributes, note)
    except DBAPIError as error:
        code = getattr(error.orig, "sqlstate", None) or ""
        if code.startswith("QL"):
            raise error_of(code, str(error.orig)) from error
        raise


# -- SQLite without alembic


def upgrade_sqlite(path: Path, revision: str = "head") -> str:
    """Install or upgrade one file, which is made with its folder when missing; see `upgrade`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number, text in _frozen_sqlite():
        if revision not in ("head", "base") and number > revision:
            break
        install_sqlite(path, text, number)
    with closing(open_sqlite(path)) as connection:
        return stands_at(connection) or ""


def install_sqlite(path: Path, text: str, revision: str = "0001") -> None:
    """Run the text of one revision in one transaction, unless the file is already past it.

    A new file gets a write-ahead log; `edge` changes that to the profile that it is given.
    """
    with closing(open_sqlite(path)) as connection:
        if connection.execute("pragma page_count").fetchone() == (0,):
            connection.execute("pragma journal_mode = wal")
        connection.execute("begin immediate")
        try:
            before = stands_at(connection)
            if before is None or before < revision:
                for statement in statements(text):
                    connection.execute(statement)
                _stamp_sqlite(connection, before, revision)
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise


def statements(text: str) -> Iterator[str]:
    """Split SQLite's text where a statement ends; triggers stay whole. Comments alone are left out.

    Raises ValueError when the last statement has no end.
    """
    pending = ""
    for line in text.splitlines(keepends=True):
        if not pending and (not line.strip() or line.lstrip().startswith("--")):
            continue
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending.strip()
            pending = ""
    if pending.strip():
        raise ValueError(f"statement without an end: {pending[:80]!r}")


def _frozen_sqlite() -> Iterator[tuple[str, str]]:
    for path in sorted((migrations_folder() / "versions").glob("[0-9]*.sqlite.sql")):
        yield path.name[:4], path.read_text(encoding="utf-8")


def open_sqlite(path: Path) -> sqlite3.Connection:
    """A connection that leaves transactions to us and makes new files with small pages.

    A new file is its owner's alone (0600): it holds inputs, environments and outputs.
    """
    if not path.exists():
        owners_alone(path)
    connection = sqlite3.connect(path, isolation_level=None, timeout=SQLITE_BUSY_MS / 1000)
    # heeded only before the first table; half the bytes written of the default
    connection.execute(f"pragma page_size = {SQLITE_PAGE_BYTES}")
    return connection


def stands_at(connection: sqlite3.Connection) -> str | None:
    """The revision of a file by both its stamps; None when it is empty. Raises NotReady."""
    tables = connection.execute("select name from sqlite_schema where type = 'table'").fetchall()
    (number,) = connection.execute("pragma user_version").fetchone()
    rows: list[tuple[str]] = []
    if ("alembic_version",) in tables:
        rows = connection.execute("select version_num from alembic_version").fetchall()
    claimed = f"{number:04d}" if number else None
    stamped = rows[0][0] if rows else None
    if claimed != stamped or len(rows) > 1:
        raise NotReady(f"user_version says {claimed}, alembic_version says {stamped}")
    if stamped is None and [name for (name,) in tables if name != "alembic_version"]:
        raise NotReady("the file has tables, but none of ours")
    return stamped


def _stamp_sqlite(connection: sqlite3.Connection, before: str | None, after: str) -> None:
    if before is None:
        found = connection.execute("select 1 from sqlite_schema where name = 'alembic_version'")
        if found.fetchone() is None:
            connection.execute(ALEMBIC_TABLE)
        connection.execute("insert into alembic_version (version_num) values (?)", (after,))
    else:
        connection.execute("update alembic_version set version_num = ?", (after,))
    connection.execute(f"pragma user_version = {int(after)}")


# -- what migrations/env.py and the revisions call


def migrations_folder() -> Path:
    """`migrations` of the checkout, or the copy inside an installed package."""
    package = Path(qinglong_sql.__file__).resolve().parent
    checkout = package.parent / "migrations"
    return checkout if (checkout / "env.py").exists() else package / "_migrations"


def run_frozen(operations: Any, revision_file: str) -> None:
    """Run the text frozen beside a revision, online or offline.

    It goes through DDL(), because a plain string would have its `:name` turned into binds.
    """
    name = operations.get_context().dialect.name
    engine = "postgres" if name == "postgresql" else name
    text = Path(revision_file).with_suffix(f".{engine}.sql").read_text(encoding="utf-8")
    _run_text(operations, statements(text) if engine == "sqlite" else [text])


def drop_everything(operations: Any) -> None:
    """The way back of 0001: every object and every row, but not the roles, which are the DBA's.

    Raises as `downgrade`.
    """
    from alembic import context

    from qinglong_sql.migrate_rows import assert_may_drop

    assert_may_drop(operations, bool(context.config.attributes.get("drop_rows")))
    if operations.get_context().dialect.name == "postgresql":
        _run_text(operations, [f"drop schema if exists {', '.join(SCHEMAS)} cascade"])
        return
    rows = operations.get_bind().exec_driver_sql(
        "select type, name from sqlite_schema where type in ('view', 'table')"
        " and name not like 'sqlite_%' and name <> 'alembic_version' order by type desc"
    )
    _run_text(operations, [f'drop {kind} "{name}"' for kind, name in rows.fetchall()])


def _run_text(operations: Any, texts: Iterable[str]) -> None:
    from sqlalchemy import DDL

    for text in texts:
        operations.execute(DDL(text.rstrip().removesuffix(";").replace("%", "%%")))  # type: ignore[no-untyped-call]


def _config(engine: Engine) -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["engine"] = engine
    return config
