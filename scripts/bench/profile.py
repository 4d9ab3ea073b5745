"""Where the time goes: functions of the server, statements of SQLite, and the share of Python."""

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import psycopg

from qinglong_sql.store.postgres import PostgresStore
from qinglong_sql.store.sqlite import Profile
from scripts.bench import load
from scripts.bench.load import Clocked
from scripts.bench.postgres import drive_one, server_seconds
from scripts.bench.sqlite import drive, fresh
from tests import engines
from tests.server import Server

_FUNCTIONS = """
  select schemaname || '.' || funcname, calls, total_time, self_time
  from pg_stat_user_functions
  order by self_time desc
"""


def postgres(running: Server, *, graphs: int, batch: int) -> list[str]:
    """Lines of text: seconds by function (the server must track them), calls, CPU by side."""
    url = engines.fresh_postgres(running)
    steps = graphs * load.STEPS
    try:
        with psycopg.connect(url, autocommit=True) as watch:
            with contextlib.closing(PostgresStore(url)) as store:
                load.prepare(store, graphs)
            watch.execute("select pg_stat_reset()")
            with contextlib.closing(PostgresStore(url)) as store:
                store.check()
                server_s, python_s = server_seconds(watch), time.process_time()
                clocked, begun = Clocked(store), time.perf_counter()
                drive_one(clocked, steps, batch)
                wall_s = time.perf_counter() - begun
                python_s = time.process_time() - python_s
                server_s = server_seconds(watch) - server_s
            time.sleep(0.3)  # the backend has told by then
            functions = watch.execute(_FUNCTIONS).fetchall()
    finally:
        engines.drop_postgres(running, url)
    lines = [
        f"PostgreSQL {running.binaries.version}, batch {batch}, {steps} steps in {wall_s:.2f} s:"
        f" server CPU {server_s:.2f} s, Python CPU {python_s:.2f} s,"
        f" waits and fsync {max(0.0, wall_s - server_s - python_s):.2f} s",
        "",
        f"{'step':<24}{'calls':>7}{'ms/call':>10}{'ms/step':>10}",
    ]
    for name, spent in sorted(clocked.spent.items(), key=lambda one: -sum(one[1])):
        ms = sum(spent) * 1000
        lines.append(f"{name:<24}{len(spent):>7}{ms / len(spent):>10.2f}{ms / steps:>10.3f}")
    lines += [
        "",
        f"{'function':<34}{'calls':>8}{'total ms':>10}{'self ms':>10}{'self us/step':>14}",
    ]
    for name, calls, total, own in functions[:30]:
        lines.append(f"{name:<34}{calls:>8}{total:>10.1f}{own:>10.1f}{own * 1000 / steps:>14.1f}")
    return lines


def sqlite(folder: Path, *, graphs: int, profile: Profile, slots: int) -> list[str]:
    """Lines of text: the statements that took longest, and how many a step runs."""
    store = fresh(folder, graphs, profile)
    steps = graphs * load.STEPS
    spent: dict[str, list[float]] = {}
    try:
        watched: Any = _Watched(store._cursor, spent)
        store._cursor = watched
        python_s, begun = time.process_time(), time.perf_counter()
        drive(store, steps, slots)
        wall_s, python_s = time.perf_counter() - begun, time.process_time() - python_s
    finally:
        store.close()
    inside = sum(map(sum, spent.values()))
    commit = sum(spent.get("commit", []))
    lines = [
        f"SQLite {profile}, {slots} slots, {steps} steps in {wall_s:.2f} s: CPU {python_s:.2f} s,"
        f" in statements {inside - commit:.2f} s, in commits {commit:.2f} s,"
        f" {sum(map(len, spent.values())) / steps:.1f} statements a step",
        "",
        f"{'runs':>7}{'us/run':>9}{'us/step':>9}  statement",
    ]
    for text, each in sorted(spent.items(), key=lambda one: -sum(one[1]))[:30]:
        us = sum(each) * 1e6
        short = re.sub(r"\s+", " ", text)[:72]
        lines.append(f"{len(each):>7}{us / len(each):>9.1f}{us / steps:>9.1f}  {short}")
    return lines


class _Watched:
    """A cursor that keeps how long each statement took."""

    def __init__(self, cursor: Any, spent: dict[str, list[float]]) -> None:
        self._cursor = cursor
        self.connection = cursor.connection
        self._spent = spent

    def execute(self, text: str, bound: Any = ()) -> Any:
        begun = time.perf_counter()
        found = self._cursor.execute(text, bound)
        self._spent.setdefault(text, []).append(time.perf_counter() - begun)
        return found
