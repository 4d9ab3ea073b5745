"""The load on SQLite as one process does it, in fused transactions, and what it cost (DESIGN §6).

A transaction starts what the one before leased, reports what the one before started, advances and
admits the runs of that, and leases for the slots that are free. Row writes are counted in a run of
their own, by temporary triggers, which cost time.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qinglong_sql.drive import fusion
from qinglong_sql.limits import PAGE_SIZE
from qinglong_sql.store.sqlite import Profile, SqliteStore
from scripts.bench import load
from tests import acting, engines

JOURNALS: dict[Profile, str] = {"standalone": "WAL", "edge": "TRUNCATE"}


def measure(folder: Path, *, graphs: int, profile: Profile, slots: int) -> dict[str, Any]:
    """Run the load once in a new file; `slots` executions share a transaction.

    Raises RuntimeError when a graph did not end well.
    """
    rows = _counted(folder, max(2, graphs // 10), slots)
    store = fresh(folder, graphs, profile)
    try:
        handed, written = _written()
        python_s, begun = time.process_time(), time.perf_counter()
        commits = drive(store, graphs * load.STEPS, slots)
        wall_s, python_s = time.perf_counter() - begun, time.process_time() - python_s
        handed, written = (
            now - then for now, then in zip(_written(), (handed, written), strict=True)
        )
        load.finished(store, graphs)
    finally:
        store.close()
    steps = graphs * load.STEPS
    return {
        "engine": f"SQLite {sqlite3.sqlite_version}",
        "variant": JOURNALS[profile],
        "batch": slots,
        "steps": steps,
        "steps_per_s": steps / wall_s,
        "rows_per_step": sum(rows.values()),
        "rows": rows,
        "bytes_per_step": handed / steps,
        "device_bytes_per_step": written / steps,
        "commits_per_step": commits / steps,
        "database_ms_per_step": None,
        "python_ms_per_step": python_s / steps * 1000,
    }


def fresh(folder: Path, graphs: int, profile: Profile) -> SqliteStore:
    """A store on a new file in which the graphs have been started."""
    template = folder / "template.db"
    if not template.exists():
        engines.sqlite_template(folder)
    for old in folder.glob("qinglong.db*"):
        old.unlink()
    url = engines.fresh_sqlite(folder, template)
    store = SqliteStore(Path(url.removeprefix("sqlite:///")), profile=profile)
    load.prepare(store, graphs)
    return store


def drive(store: SqliteStore, steps: int, slots: int) -> int:
    """Do all steps; the number of transactions."""
    fuse = fusion(store)
    assert fuse is not None
    offers, done, commits = load.names(), 0, 0
    leased: list[acting.Held] = []
    started: list[acting.Held] = []
    moved = _page(store)
    commits += moved
    while done < steps:
        said = [load.ending(started)] if started else []
        said += [load.starting(leased)] if leased else []
        runs = sorted({held.row["run_id"] for held in started})[:PAGE_SIZE]
        free = slots - len(leased)
        wanted = [load.leasing([next(offers) for _ in range(free)])] if free else []
        answers = fuse(said, runs, wanted)
        if answers is None or any(
            row["outcome"] != "applied" for rows in answers[: len(said)] for row in rows
        ):
            raise RuntimeError(f"a fused transaction came to nothing: {answers}")
        commits += 1
        done += len(started)
        started, leased = leased, load.held_of(answers[-1]) if wanted else []
        if not started and not leased and done < steps:
            moved = _page(store)
            if not moved:
                raise RuntimeError(f"nothing is due after {done} steps")
            commits += moved
    return commits + _page(store)


def _page(store: SqliteStore) -> int:
    """What a cycle finds due by itself: new runs; the number of transactions."""
    calls = 0
    for stage, step in (("frontier", "advance_frontier"), ("task_admission", "admit_tasks")):
        due = store.call("due_page", p_stage=stage, **_keys())
        for one in due:
            store.call(step, p_run_id=one["run_id"])
        calls += len(due)
    return calls


def _keys() -> dict[str, object]:
    return {"p_after_due_at_ms": -1, "p_after_run_id": "", "p_limit": PAGE_SIZE}


def _counted(folder: Path, graphs: int, slots: int) -> dict[str, float]:
    """Row writes a step by table."""
    store = fresh(folder, graphs, "standalone")
    try:
        found = _tally(store, lambda: drive(store, graphs * load.STEPS, slots))
        load.finished(store, graphs)
    finally:
        store.close()
    return {name: count / graphs / load.STEPS for name, count in found.items()}


def _tally(store: SqliteStore, act: Callable[[], object]) -> dict[str, int]:
    """How many rows of each table `act` wrote."""
    run = store._connection.execute
    names = [name for (name,) in run("select name from main.sqlite_schema where type = 'table'")]
    run("create temp table tally (name text primary key, rows integer not null) strict")
    for name in names:
        run("insert into temp.tally values (?, 0)", (name,))
        for verb in ("insert", "update", "delete"):
            run(
                f"create temp trigger tally_{name}_{verb} after {verb} on main.{name} begin"
                f" update tally set rows = rows + 1 where name = '{name}'; end"
            )
    act()
    return dict(run("select name, rows from temp.tally where rows > 0 order by name").fetchall())


def _written() -> tuple[int, int]:
    """Bytes that this process handed to write(), and those that went to a device."""
    told = dict(
        line.split(": ")
        for line in Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
        if line
    )
    return int(told["wchar"]), int(told["write_bytes"])
