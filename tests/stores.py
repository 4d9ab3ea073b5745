"""Clocks that stand until a test moves them, and stores that read them, on either engine."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

from qinglong_sql.migrate import install_sqlite
from qinglong_sql.store import Store, open_store
from qinglong_sql.store.sqlfiles import manifest_text
from qinglong_sql.store.sqlite import Profile, SqliteStore
from tests.engines import NEWEST, Engine
from tests.server import SQL_ROOT

DAWN_MS = 1_700_000_000_000


class FakeClock:
    """Milliseconds since 1970 that pass only when a test says so."""

    def __init__(self, now_ms: int = DAWN_MS) -> None:
        self.now_ms = now_ms

    def now(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> int:
        """Let time pass, or go back when negative; the time then."""
        self.set(self.now_ms + ms)
        return self.now_ms

    def set(self, ms: int) -> None:
        self.now_ms = ms


class ServerClock(FakeClock):
    """The same for one database: its function `ql.now_ms` answers what a test says."""

    def __init__(self, dsn: str, now_ms: int = DAWN_MS) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self.set(now_ms)

    def set(self, ms: int) -> None:
        super().set(ms)
        body = f"begin return {int(ms)}; end"
        self._connection.execute(
            "create or replace function ql.now_ms () returns bigint language plpgsql volatile"
            f" set search_path = pg_catalog, pg_temp as $$ {body} $$"  # type: ignore[arg-type]
        )

    def close(self) -> None:
        self._connection.close()


def ship_clock(dsn: str) -> None:
    """Put back the clock that is shipped; what compares the schema refuses that of a test."""
    text = (SQL_ROOT / "postgres" / "schema.sql").read_text(encoding="utf-8")
    _, begins, rest = text.partition("create or replace function ql.now_ms ()")
    body, ends, _ = rest.partition("$$;")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(begins + body + ends)  # type: ignore[arg-type]


def store_on(engine: Engine, clock: FakeClock) -> Store:
    """An open store whose time is that clock's. Close it."""
    if engine.kind == "sqlite":
        return SqliteStore(Path(engine.dsn.removeprefix("sqlite:///")), clock=clock.now)
    return open_store(engine.dsn)


def install(path: Path) -> None:
    """Make a file with the tables and the decision views of the `sql/` tree."""
    install_sqlite(path, manifest_text(), NEWEST)


def sqlite_store(
    tmp_path: Path, clock: FakeClock, *, profile: Profile = "standalone", name: str = "qinglong.db"
) -> SqliteStore:
    """A store on `tmp_path/name`, installed when it is not there yet. Close it."""
    path = tmp_path / name
    if not path.exists():
        install(path)
    return SqliteStore(path, profile=profile, clock=clock.now)


def everything(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table of a SQLite file."""
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("select name from sqlite_schema where type = 'table'").fetchall()
        return {name: connection.execute(f"select * from {name}").fetchall() for (name,) in names}
