"""A quick look without a store, for completions: it reads, waits for nobody and makes no file."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from qinglong_sql.store import POSTGRES, SQLITE, VIEWS, Row, select_text

WAL_AT, WAL_MARK = 18, 2  # where the header of a SQLite file says that it is written ahead
BUSY_S = 0.2
CONNECT_S = "2"


def glance(dsn: str, view: str, *, order: str = "", limit: int = 0, **equals: object) -> list[Row]:
    """Rows of a view as `Store.read` gives them, from a database that nobody checked before.

    Raises what the database raises, OSError without a file, KeyError as `Store.read` does.
    """
    if view not in VIEWS:
        raise KeyError(view)
    if dsn.startswith(SQLITE):
        return _sqlite(Path(dsn.removeprefix(SQLITE)), view, order, limit, equals)
    if not dsn.startswith(POSTGRES):
        raise KeyError("dsn")
    return _postgres(dsn, view, order, limit, equals)


def _sqlite(path: Path, view: str, order: str, limit: int, equals: Row) -> list[Row]:
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro"
    uri += "&immutable=1" if _alone(path) else ""
    with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as connection:
        columns = [row[1] for row in connection.execute(f"pragma table_info({view})")]
        tail, values = select_text(view, columns, order, limit, equals)
        cursor = connection.execute(f"select * from {view}{tail.replace('{}', '?')}", values)
        return [dict(zip(columns, row, strict=True)) for row in cursor]


def _alone(path: Path) -> bool:
    """Whether nobody has a file open that is written ahead: opening it would make two more."""
    with path.open("rb") as file:
        header = file.read(WAL_AT + 1)
    ahead = len(header) > WAL_AT and header[WAL_AT] == WAL_MARK
    return ahead and not all(Path(f"{path}-{tail}").exists() for tail in ("wal", "shm"))


def _postgres(dsn: str, view: str, order: str, limit: int, equals: Row) -> list[Row]:
    from psycopg.conninfo import make_conninfo

    from qinglong_sql.store.postgres import PostgresStore

    with closing(PostgresStore(make_conninfo(dsn, connect_timeout=CONNECT_S))) as store:
        return store.read(view, order=order, limit=limit, **equals)
