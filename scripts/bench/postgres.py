"""The load on PostgreSQL, by one connection that does all or by two, and what it cost."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from qinglong_sql.store.postgres import PostgresStore
from scripts.bench import load
from scripts.bench.load import Clocked
from tests import engines
from tests.binaries import NoServer, find
from tests.server import Server, start, stop

# as the peers of this kind of benchmark are run, everything else at its default
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "2GB", "jit": "off"}
IDLE_S = 0.002
TICKS = 100  # of /proc's clock, a second

_ROWS = """
  select relname, n_tup_ins + n_tup_upd + n_tup_del as rows
  from pg_stat_user_tables
  where n_tup_ins + n_tup_upd + n_tup_del > 0
"""
_READS = """
  select
    sum(t.seq_scan + coalesce(t.idx_scan, 0))::bigint as scans,
    sum(t.seq_tup_read + coalesce(t.idx_tup_fetch, 0))::bigint as tuples,
    sum(b.heap_blks_hit + b.heap_blks_read + coalesce(b.idx_blks_hit + b.idx_blks_read, 0))::bigint
      as buffers
  from pg_stat_user_tables as t
  join pg_statio_user_tables as b on b.relid = t.relid
"""
_BACKENDS = """
  select pid from pg_stat_activity
  where datname = current_database() and backend_type = 'client backend'
    and pid <> pg_backend_pid()
"""


@dataclass(frozen=True, slots=True)
class Before:
    """What had been done when the clock started."""

    wal: str
    server_s: float
    python_s: float
    at_s: float


@contextlib.contextmanager
def server(major: int | None, **settings: str) -> Iterator[Server]:
    """A server of that major version (the first that is found) with the schema in a template."""
    found = [one for one in find()[0] if major in (None, one.major)]
    if not found:
        raise NoServer(f"no PostgreSQL {major or ''} here; set PG_BINDIR")
    running = start(found[0], durable=True, options=SETTINGS | settings)
    try:
        engines.postgres_template(running)
        yield running
    finally:
        stop(running)


def measure(running: Server, *, graphs: int, batch: int, connections: int) -> dict[str, Any]:
    """Run the load once in a fresh database; everything `a step` is divided by its steps.

    With one connection the scheduler's and the worker's calls take turns; with two each has its
    own. Raises RuntimeError when a graph did not end well.
    """
    url = engines.fresh_postgres(running)
    try:
        with psycopg.connect(url, autocommit=True) as watch:
            with contextlib.closing(PostgresStore(url)) as store:
                load.prepare(store, graphs)
            rows_before, reads_before = _rows(watch), _reads(watch)
            stores = [PostgresStore(url) for _ in range(connections)]
            try:
                for store in stores:
                    store.check()
                before = _before(watch)
                clocked = [Clocked(store) for store in stores]
                if connections == 1:
                    drive_one(clocked[0], graphs * load.STEPS, batch)
                else:
                    _drive_two(clocked[0], clocked[1], graphs * load.STEPS, batch)
                taken = _taken(watch, before)
                load.finished(stores[0], graphs)
            finally:
                for store in stores:
                    store.close()
            rows, reads = _rows(watch), _reads(watch)
    finally:
        engines.drop_postgres(running, url)
    steps = graphs * load.STEPS
    written = {name: count - rows_before.get(name, 0) for name, count in rows.items()}
    return {
        "engine": f"PostgreSQL {running.binaries.version}",
        "variant": f"{connections} connection{'s' if connections > 1 else ''}",
        "batch": batch,
        "steps": steps,
        "steps_per_s": steps / taken["wall_s"],
        "rows_per_step": sum(written.values()) / steps,
        "rows": {name: count / steps for name, count in sorted(written.items()) if count},
        "reads": {name: (count - reads_before[name]) / steps for name, count in reads.items()},
        "bytes_per_step": taken["wal"] / steps,
        "commits_per_step": sum(one.calls() for one in clocked) / steps,
        "database_ms_per_step": taken["server_s"] / steps * 1000,
        "python_ms_per_step": taken["python_s"] / steps * 1000,
        "calls": {
            name: {"calls": len(spent), "ms_per_call": sum(spent) / len(spent) * 1000}
            for one in clocked
            for name, spent in one.spent.items()
        },
    }


def warm(running: Server, batch: int) -> None:
    """One run that nobody looks at: the server reads its catalog and grows its files."""
    measure(running, graphs=40, batch=batch, connections=1)


def drive_one(clocked: Clocked, steps: int, batch: int) -> None:
    """Do all steps by one connection: the scheduler's and the worker's calls take turns."""
    offers, done = load.names(), 0
    while done < steps:
        load.schedule(clocked)
        done += load.work(clocked, offers, batch)
    while load.schedule(clocked):
        pass


def _drive_two(worker: Clocked, scheduler: Clocked, steps: int, batch: int) -> None:
    offers, done, over = load.names(), 0, threading.Event()
    cycles = threading.Thread(target=_schedule, args=(scheduler, over))
    cycles.start()
    try:
        while done < steps:
            if not cycles.is_alive():
                raise RuntimeError("the scheduler's connection broke off")
            found = load.work(worker, offers, batch)
            done += found
            if not found:
                time.sleep(IDLE_S)
    finally:
        over.set()
        cycles.join()


def _schedule(clocked: Clocked, over: threading.Event) -> None:
    while True:
        last = over.is_set()
        if not load.schedule(clocked):
            if last:
                return
            time.sleep(IDLE_S)


def _before(watch: psycopg.Connection[Any]) -> Before:
    wal = watch.execute("select pg_current_wal_insert_lsn()::text").fetchall()[0][0]
    return Before(wal, server_seconds(watch), time.process_time(), time.perf_counter())


def _taken(watch: psycopg.Connection[Any], before: Before) -> dict[str, float]:
    wall_s = time.perf_counter() - before.at_s
    wal = watch.execute("select pg_current_wal_insert_lsn() - %s::pg_lsn", (before.wal,))
    return {
        "wall_s": wall_s,
        "python_s": time.process_time() - before.python_s,
        "server_s": server_seconds(watch) - before.server_s,
        "wal": float(wal.fetchall()[0][0]),
    }


def _rows(watch: psycopg.Connection[Any]) -> dict[str, int]:
    """Row writes by table so far. Waits for all others to leave, who then tell what they did."""
    while watch.execute(_BACKENDS).fetchall():
        time.sleep(0.02)
    return dict(watch.execute(_ROWS).fetchall())


def _reads(watch: psycopg.Connection[Any]) -> dict[str, int]:
    """Looks into tables and indices, the rows that they gave, and the buffers touched, so far."""
    told = watch.execute(_READS).fetchall()[0]
    return dict(zip(("scans", "tuples", "buffers"), told, strict=True))


def server_seconds(watch: psycopg.Connection[Any]) -> float:
    """Seconds of CPU of the backends that are connected."""
    total = 0.0
    for (pid,) in watch.execute(_BACKENDS).fetchall():
        with contextlib.suppress(OSError):
            told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total += (int(told[11]) + int(told[12])) / TICKS
    return total
