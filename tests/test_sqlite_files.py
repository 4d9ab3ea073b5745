"""The files of SQLite's steps: their form, their parameters, and that no step scans what grows."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql.store.sqlfiles import Part, sqlite_steps
from qinglong_sql.store.sqlite import SqliteStore
from qinglong_sql.store.steps import STEPS
from tests.stores import FakeClock, sqlite_store

WORKSHOP = ("connect", "standalone", "edge", "workspace")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(sqlite_store(tmp_path, FakeClock())) as opened:
        yield opened


def parts_of(parts: tuple[Part, ...]) -> Iterator[str]:
    for part in parts:
        if part.text:
            yield part.text
        yield from parts_of(part.parts)


def test_every_step_is_there_and_uses_its_own_parameters_only() -> None:
    steps = sqlite_steps()
    assert STEPS.keys() <= steps.keys()
    for name, step in steps.items():
        if name not in STEPS:
            continue
        used = set(re.findall(r":(p_[a-z_]+)", "\n".join(parts_of(step.parts))))
        assert used - {"p_stage"} <= set(STEPS[name].params), name
        assert set(STEPS[name].params) - used - {"p_stage"} == set(), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select 1;\n-- STEP     one — x\nselect 1;\n", "before the first header"),
        ("-- STEP     one — x\n-- CALL     two\n", "no helper two"),
        ("-- STEP     one — x\n-- CALL     one\n", "calls itself"),
        ("-- STEP     one — x\nselect 1;\n-- HELPER   one — x\nselect 1;\n", "twice"),
        (
            "-- STEP     one — x\n-- WHEN     two\n-- HELPER   two — x\ndelete from t;\n",
            "no select",
        ),
        ("-- STEP     one — x\nselect 1\n", "without an end"),
    ],
)
def test_a_file_that_does_not_keep_to_its_form_is_told(
    tmp_path: Path, text: str, message: str
) -> None:
    from qinglong_sql.store.sqlfiles import WORDS

    (tmp_path / "sqlite").mkdir()
    for word in WORDS:
        (tmp_path / "sqlite" / f"{word}.sql").write_text(text if word == "connection" else "")
    with pytest.raises(ValueError, match=message):
        sqlite_steps(tmp_path)


# Rows of these are few.
SMALL = {"worker_session", "package", "trigger_fault", "sqlite_schema"}


class Anything(dict[str, object]):
    def __missing__(self, key: str) -> object:
        return 1


def scans_of(connection: sqlite3.Connection, text: str) -> set[str]:
    """Tables of the file that a statement walks from one end, by its byte code."""
    roots = dict(connection.execute("select rootpage, tbl_name from sqlite_schema"))
    cursors: dict[int, str] = {}
    found = set()
    for row in connection.execute(f"explain {text}", Anything()):
        opcode, first, second, third = row[1], row[2], row[3], row[4]
        if opcode in ("OpenRead", "OpenWrite", "ReopenIdx"):
            cursors.pop(first, None)
            if third == 0:  # the file; 1 is temp
                cursors[first] = roots.get(second, "")
        elif opcode.startswith("Open"):
            cursors.pop(first, None)
        elif opcode in ("Rewind", "Last", "Sort") and first in cursors:
            found.add(cursors[first])
    return found - SMALL


def test_no_step_scans_a_table_that_grows(store: SqliteStore) -> None:
    scans = {
        (name, table)
        for name, step in sqlite_steps().items()
        # a publication's only scans are those of foreign keys, which run when one is broken
        if name not in (*WORKSHOP, "publish_package")
        for text in parts_of(step.parts)
        for table in scans_of(store._connection, text)
    }
    assert scans == set()


def test_a_scan_would_be_seen(store: SqliteStore) -> None:
    assert scans_of(store._connection, "select count(*) from run where status = 'x'") == {"run"}
    assert scans_of(store._connection, "select * from run where run_id = 'x'") == set()
    assert scans_of(store._connection, "select * from live_attempt") == {"task_attempt"}
