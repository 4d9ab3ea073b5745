"""The same-writes bound: the row writes of a durable, audited step with no rule behind them.

Nothing is chosen, locked or checked: a scheduler with one connection can come near, not above. By
three transactions a batch (lease, start, report), as a worker has to, because executions run
between them; ids are numbers and rows are short, so the bound is a generous one.
"""

import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

TABLES = """
create table bound_step (id bigint primary key, status text not null, at bigint);
create table bound_attempt (id bigint primary key, step bigint not null, status text, at bigint);
create table bound_lease (id bigint primary key, worker text not null, fence bigint, until bigint);
create table bound_offer (id bigint primary key, digest text not null);
create table bound_report (id bigint not null, kind text, said text, primary key (id, kind));
create table bound_event (id bigint not null, number bigint, type text not null, was text,
  is_now text, at bigint, primary key (id, number));
"""

# one row a step each: 17 row writes, 7 of which are history
STAGED = (
    (
        "insert into bound_attempt select id, id, 'claimed', 1 from bound_step where {}",
        "insert into bound_offer select id, 'a digest of a token' from bound_step where {}",
        "insert into bound_lease select id, 'w1', 1, 30000 from bound_step where {}",
        "update bound_step set status = 'ready', at = 1 where {}",
        "insert into bound_event select id, n, 'step.ready', 'pending', 'ready', 1"
        " from bound_step cross join (select 1 as n union all select 2 union all select 3) as e"
        " where {}",
    ),
    (
        "insert into bound_report select id, 'starting', 'pid 7' from bound_step where {}",
        "update bound_attempt set status = 'starting', at = 2 where {}",
        "insert into bound_event select id, 4, 'attempt.starting', 'claimed', 'starting', 2"
        " from bound_step where {}",
    ),
    (
        "insert into bound_report select id, 'ended', 'exit 0' from bound_step where {}",
        "update bound_attempt set status = 'succeeded', at = 3 where {}",
        "update bound_lease set fence = 2 where {}",
        "update bound_step set status = 'succeeded', at = 3 where {}",
        "insert into bound_event select id, n, 'step.succeeded', 'running', 'succeeded', 3"
        " from bound_step cross join (select 5 as n union all select 6 union all select 7) as e"
        " where {}",
    ),
)
RANGE = "id between {} and {}"


def postgres(url: str, batches: Sequence[int], seconds: float) -> dict[int, float]:
    """{batch: steps/s} on a server, in tables of its own that are dropped afterwards."""
    found = {}
    with psycopg.connect(url) as connection:
        for batch in batches:
            for statement in TABLES.split(";")[:-1]:
                connection.execute(statement)  # type: ignore[arg-type]
            total = batch * max(4, int(12_000 * seconds / batch))
            connection.execute(
                "insert into bound_step select i, 'pending', 0 from generate_series(1, %s) as i",
                (total,),
            )
            connection.commit()
            connection.autocommit = True
            connection.execute("vacuum analyze bound_step")
            connection.autocommit = False
            found[batch] = _staged(connection, "%s", total, batch, seconds)
            connection.execute(
                "drop table bound_step, bound_attempt, bound_lease, bound_offer, bound_report,"
                " bound_event"
            )
            connection.commit()
    return found


def sqlite(
    pragmas: Sequence[str], batches: Sequence[int], seconds: float, folder: Path
) -> dict[int, float]:
    """{batch: steps/s} in a file with these pragmas; a batch is one transaction, fused."""
    found = {}
    for batch in batches:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            with closing(sqlite3.connect(f"{place}/bound.db", isolation_level=None)) as file:
                for pragma in pragmas:
                    file.execute(pragma)
                for statement in TABLES.split(";")[:-1]:
                    file.execute(statement)
                total = batch * max(4, int(8_000 * seconds / batch))
                file.execute("begin immediate")
                rows = ((number, "pending", 0) for number in range(1, total + 1))
                file.executemany("insert into bound_step values (?, ?, ?)", rows)
                file.execute("commit")
                found[batch] = _fused(file, total, batch, seconds)
    return found


def outside(script: Path, url: str, seconds: float) -> dict[int, float]:
    """{batch: steps/s} of another script's staged bound on the same server.

    It is called with --dsn, --seconds, --repeat and --json, and tells `same_writes_bound`: rows
    with batch, transactions_per_batch and steps_per_s. Raises RuntimeError with its words.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as told:
        words = ["--dsn", url, "--seconds", str(seconds), "--repeat", "1", "--json", told.name]
        done = subprocess.run(
            [sys.executable, str(script), *words],
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{script}: {done.stderr[-2000:]}")
        rows = json.loads(Path(told.name).read_text(encoding="utf-8"))["same_writes_bound"]
    return {row["batch"]: row["steps_per_s"] for row in rows if row["transactions_per_batch"] > 1}


def nearest(bounds: dict[int, float], batch: int) -> float | None:
    """The bound of the batch that is nearest to this one."""
    return bounds[min(bounds, key=lambda one: (abs(one - batch), one))] if bounds else None


def _staged(
    connection: psycopg.Connection[Any], mark: str, total: int, batch: int, seconds: float
) -> float:
    low, begun = 1, time.perf_counter()
    where = RANGE.format(mark, mark)
    while low <= total and time.perf_counter() - begun < seconds:
        for statements in STAGED:
            with connection.pipeline():
                for text in statements:
                    words = text.format(where)
                    connection.execute(words, (low, low + batch - 1), prepare=True)  # type: ignore[arg-type]
                connection.commit()
        low += batch
    return (low - 1) / (time.perf_counter() - begun)


def _fused(file: sqlite3.Connection, total: int, batch: int, seconds: float) -> float:
    low, begun = 1, time.perf_counter()
    where = RANGE.format("?", "?")
    while low <= total and time.perf_counter() - begun < seconds:
        file.execute("begin immediate")
        for statements in STAGED:
            for text in statements:
                file.execute(text.format(where), (low, low + batch - 1))
        file.execute("commit")
        low += batch
    return (low - 1) / (time.perf_counter() - begun)
