"""The one row builder for both engines: a tests.state.State becomes rows, without any mechanics.

Works on a raw sqlite3 connection (isolation_level None) and on a raw psycopg connection of a
superuser with autocommit; the schema is that of sql/<engine>/table.sql and sql/decision.
"""

import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg

from tests import rows
from tests.state import State

SQL_ROOT = Path(__file__).resolve().parent.parent / "sql"
DECISIONS = (
    "state", "admission", "schedule", "frontier", "task_admission", "dispatch", "completion",
    "recovery", "cancellation", "retention", "explain", "violation",
)  # fmt: skip
Connection = sqlite3.Connection | psycopg.Connection[Any]


def install(connection: Connection) -> None:
    """Give an empty database the tables and the decision views."""
    if isinstance(connection, sqlite3.Connection):
        connection.executescript((SQL_ROOT / "sqlite" / "table.sql").read_text())
        # without trigger.sql, which guards rows from mechanics and takes a third of the time
    else:
        connection.execute("create schema ql")
        connection.execute((SQL_ROOT / "postgres" / "table.sql").read_bytes())
        connection.execute("set search_path = ql, pg_catalog")
        connection.execute("set jit = off")  # as every step does (DESIGN §4)
    decide(connection, {})


def decide(connection: Connection, changed: Mapping[str, str]) -> None:
    """Make the decision views anew. changed: other text for a file, by its word (for mutants)."""
    text = "".join(changed.get(word) or decision(word) for word in DECISIONS)
    if isinstance(connection, sqlite3.Connection):
        views = connection.execute("select name from sqlite_schema where type = 'view'").fetchall()
        connection.executescript("".join(f"drop view {name};" for (name,) in views) + text)
    else:
        views = connection.execute(
            "select viewname from pg_catalog.pg_views where schemaname = 'ql'"
        ).fetchall()
        drops = "".join(f"drop view if exists ql.{name} cascade;" for (name,) in views)
        connection.execute((drops + text).encode())


def decision(word: str) -> str:
    """The text of a file in sql/decision."""
    return (SQL_ROOT / "decision" / f"{word}.sql").read_text()


def write(connection: Connection, states: Iterable[State], known: set[str] | None = None) -> None:
    """Write runs with all they hold, in one transaction. Run ids must be new.

    known: ids of the definitions that are there already; those that come anew are added to it.
    """
    found: rows.Rows = {name: [] for name in rows.COLUMNS}
    known = set() if known is None else known
    for state in itertools.chain.from_iterable(map(_with_before, states)):
        rows.definitions(found, state.graph, known)
        rows.run_rows(found, state)
        rows.step_rows(found, state)
        rows.attempt_rows(found, state)
        rows.input_rows(found, state)
    if isinstance(connection, sqlite3.Connection):
        connection.execute("begin immediate")
        for name, table in found.items():
            columns = rows.COLUMNS[name].split()
            marks = ", ".join("?" * len(columns))
            text = f"insert into {name} ({', '.join(columns)}) values ({marks})"
            connection.executemany(text, table)
        connection.execute("commit")
        return
    with connection.transaction(), connection.cursor() as cursor:
        for name, table in found.items():
            columns = ", ".join(rows.COLUMNS[name].split())
            with cursor.copy(f"copy ql.{name} ({columns}) from stdin".encode()) as copy:
                for row in table:
                    copy.write_row(row)
    names = ", ".join(f"ql.{name}" for name, table in found.items() if table)
    connection.execute(f"analyze {names}".encode())


def _with_before(state: State) -> Iterator[State]:
    if state.before is not None:
        yield state.before
    yield state


def clear(connection: psycopg.Connection[Any]) -> None:
    """Remove all runs; definitions stay. (SQLite is quicker with a new database.)"""
    names = ", ".join(f"ql.{name}" for name in rows.COLUMNS if name not in rows.DEFINITIONS)
    connection.execute(f"truncate {names}, ql.run_input".encode())


def read(connection: Connection, view: str, columns: str) -> dict[str, list[tuple[Any, ...]]]:
    """A whole view by run_id, which must be the first of the columns; rows in no order."""
    prefix = "" if isinstance(connection, sqlite3.Connection) else "ql."
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in connection.execute(f"select {columns} from {prefix}{view}"):  # type: ignore[arg-type]
        found.setdefault(row[0], []).append(row)
    return found


def in_order(found: Mapping[str, list[tuple[Any, ...]]]) -> Iterator[tuple[str, list[Any]]]:
    """Effects of each run by ordinal, with the holes closed. Raises when an ordinal comes twice."""
    for run_id, effects in found.items():
        effects.sort(key=lambda row: row[1])
        if any(one[1] == other[1] for one, other in pairwise(effects)):
            raise AssertionError(f"an ordinal comes twice: {effects}")
        yield run_id, [(run_id, place, *row[2:]) for place, row in enumerate(effects, start=1)]
