"""The real SQLite store in memory, whose transactions can be taken back."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qinglong_sql.store.sqlite import SqliteStore


class Nested:
    """A cursor whose transactions are savepoints, so that a whole world can be taken back."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._open = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, text: str, *values: Any) -> sqlite3.Cursor:
        match text:
            case "begin" | "begin immediate":
                self._open = True
                return self._cursor.execute("savepoint nested")
            case "commit":
                self._open = False
                return self._cursor.execute("release nested")
            case "rollback":
                if self._open:
                    self._cursor.execute("rollback to nested")
                    self._cursor.execute("release nested")
                self._open = False
                return self._cursor
        return self._cursor.execute(text, *values)


class MemoryStore(SqliteStore):
    """The real store on a database in memory, whose whole state is an image."""

    def __init__(self, template: Path, clock: Callable[[], int]) -> None:
        image = bytearray(template.read_bytes())
        image[18:20] = b"\x01\x01"  # no write-ahead log in memory
        self._image = bytes(image)
        super().__init__(template, clock=clock)
        self._cursor = Nested(self._cursor)  # type: ignore[assignment]

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, cached_statements=512, check_same_thread=False
        )
        connection.deserialize(self._image)
        return connection

    @property
    def raw(self) -> sqlite3.Connection:
        return self._connection
