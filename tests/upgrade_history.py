"""Millions of rows of runs that have ended, for both engines: what an upgrade finds (DESIGN §10).

One real run is copied, set by set, past all rules but those of the tables; `OF_HISTORY` begins the
ids of the copies.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tests.upgrading import OF_HISTORY

NOT_COPIED = {"agenda", "run_fault", "trigger_run"}
IDS = {"run_id", "attempt_id", "entity_id", "input_id"}
Rows = Callable[[str], list[tuple[Any, ...]]]


def columns_of(rows: Rows, listed: str) -> dict[str, list[str]]:
    """{table: columns} of the tables that know a run, the run itself first."""
    found: dict[str, list[str]] = {}
    for table, column in rows(listed):
        found.setdefault(table, []).append(column)
    known = {name: names for name, names in found.items()
             if "run_id" in names and name not in NOT_COPIED}  # fmt: skip
    return {"run": known.pop("run")} | known


def values(names: list[str], run_id: str, offer: str) -> str:
    """The columns of a copy: ids with the copy's own, keys that no other has."""
    own = {"run_key": "c.run_id", "offer_id": offer}
    own |= {name: f"replace(t.{name}, '{run_id}', c.run_id)" for name in IDS}
    return ", ".join(own.get(name, f"t.{name}") for name in names)


def filled(url: str, run_id: str, rows: int) -> int:
    """Copy a run of a PostgreSQL database until there are so many rows; how many there are."""
    listed = (
        "select table_name, column_name from information_schema.columns as c"
        " join pg_tables as p on p.schemaname = 'ql' and p.tablename = c.table_name"
        " where c.table_schema = 'ql' order by c.table_name, c.ordinal_position"
    )
    with psycopg.connect(url, autocommit=True) as connection:

        def ask(text: str) -> list[tuple[Any, ...]]:
            return connection.execute(text.encode()).fetchall()

        tables = columns_of(ask, listed)
        each = sum(ask(f"select count(*) from ql.{one} where run_id = '{run_id}'")[0][0]
                   for one in tables)  # fmt: skip
        copies = rows // each + 1
        for text in (
            "set statement_timeout = 0",
            "set session_replication_role = replica",  # no foreign keys
            "set synchronous_commit = off",
            f"create temp table clone as select '{OF_HISTORY}' || left(md5(g::text), 24)"
            f' collate "C" as run_id from generate_series(1, {copies}) as g order by 1',
        ):
            connection.execute(text.encode())
        for table, names in tables.items():
            copied = values(names, run_id, "md5(t.offer_id || c.run_id)")
            connection.execute(
                f"insert into ql.{table} ({', '.join(names)}) select {copied} from clone as c"
                f" cross join ql.{table} as t where t.run_id = '{run_id}'".encode()
            )
        connection.execute("vacuum analyze")
        connection.execute("checkpoint")
    return int(copies * each)


def filled_file(path: Path, run_id: str, rows: int) -> int:
    """The same in a SQLite file."""
    listed = (
        "select m.name, c.name from sqlite_schema as m join pragma_table_info(m.name) as c"
        " where m.type = 'table' order by m.name, c.cid"
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        tables = columns_of(lambda text: connection.execute(text).fetchall(), listed)
        counted = f"where run_id = '{run_id}'"
        each = sum(connection.execute(f"select count(*) from {one} {counted}").fetchone()[0]
                   for one in tables)  # fmt: skip
        copies = rows // each + 1
        for text in (
            "pragma synchronous = off",
            "pragma cache_size = -200000",
            "begin immediate",
            "create temp table clone (run_id text primary key)",
            f"""insert into temp.clone with recursive g (n) as (
              select 1 union all select n + 1 from g where n < {copies}
            ) select '{OF_HISTORY}' || printf('%024x', n) from g""",
        ):
            connection.execute(text)
        for table, names in tables.items():
            copied = values(names, run_id, "substr(t.offer_id || c.run_id, -36)")
            connection.execute(
                f"insert into main.{table} ({', '.join(names)}) select {copied}"
                f" from temp.clone as c join main.{table} as t where t.run_id = '{run_id}'"
            )
        connection.execute("commit")
    return int(copies * each)
