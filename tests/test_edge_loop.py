"""The loop of an edge in this process: trouble, purges, idleness, its lines and its journal."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql import edge_log, edge_purge, retention
from qinglong_sql.cli.edge import words_of
from qinglong_sql.edge import Edge
from qinglong_sql.edge_log import CALM_S, LINES_A_WINDOW, SAME_AGAIN_S, WINDOW_S, Log
from qinglong_sql.edge_packages import publisher
from qinglong_sql.edge_setting import SETTINGS, only_one
from qinglong_sql.errors import NotReady
from qinglong_sql.execution import boottime_ms
from qinglong_sql.limits import PAGE_SIZE
from qinglong_sql.package import parse_package
from qinglong_sql.scheduler import Turn, local_cycle
from qinglong_sql.store.sqlite import Profile, open_sqlite


@pytest.fixture
def served(tmp_path: Path, sqlite_dsn: str) -> Iterator[Edge]:
    path = Path(sqlite_dsn.removeprefix("sqlite:///"))
    with only_one(tmp_path), closing(open_sqlite(path, profile="edge")) as store:
        with (tmp_path / "log").open("w") as out:
            one = Edge(
                store, tmp_path, SETTINGS["edge"], Log("text", False, out), words_of,
                lease_ms=5_000, grace_ms=100, keep_ms=1,
            )  # fmt: skip
            try:
                yield one
            finally:
                one.close()
                one.close()


def test_trouble_is_told_and_has_an_end(
    served: Edge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [sqlite3.OperationalError("database or disk is full")] * 5
    turns = iter(range(60))
    real = served._store.page
    monkeypatch.setattr(edge_log, "CALM_S", 0.0)

    def page(*given: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(*given)

    monkeypatch.setattr(served._store, "page", page)
    served.interrupts = lambda: int(not errors and next(turns) > 20)
    served.wake()
    served.serve()
    words = [line[25:] for line in (tmp_path / "log").read_text().splitlines()][1:]
    assert words == [
        "trying again: SQLite: database or disk is full",
        "it works again",
        "stopped",
    ]
    assert served.status()["last_error"]["words"] == "SQLite: database or disk is full"


def test_what_ended_long_ago_is_purged(
    served: Edge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int | None]] = []

    def purge(store: Any, before_ms: int, *, folder: Path, limit: int) -> retention.Purged:
        assert folder == tmp_path
        asked.append((before_ms, limit))
        return retention.Purged(runs=32 if len(asked) < 3 else 1)

    monkeypatch.setattr(retention, "purge", purge)
    served.purge.due_ms = 0
    end = time.monotonic() + 1
    served.interrupts = lambda: int(time.monotonic() > end)
    served.serve()
    assert [limit for _, limit in asked] == [32, 32, 32], "a page a look, then nothing for an hour"
    assert abs(asked[0][0] - time.time() * 1000) < 10_000
    assert "purged 65 runs older than --keep" in (tmp_path / "log").read_text()


def test_a_purge_that_failed_is_tried_again_soon_and_told(
    served: Edge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def purge(*given: Any, **named: Any) -> retention.Purged:
        asked.append(edge_purge.AGAIN_MS)
        if len(asked) == 1:
            raise sqlite3.OperationalError("database or disk is full")
        return retention.Purged(runs=1)

    monkeypatch.setattr(retention, "purge", purge)
    monkeypatch.setattr(edge_purge, "AGAIN_MS", 50)
    served.setting = replace(served.setting, idle_ms=20)
    served.purge.due_ms = 0
    end = time.monotonic() + 5
    served.interrupts = lambda: int(len(asked) > 1 or time.monotonic() > end)
    served.serve()
    words = [line[25:] for line in (tmp_path / "log").read_text().splitlines()]
    assert words[1:] == [
        "purge by --keep, again in 5 minutes: SQLite: database or disk is full",
        "purged 1 run older than --keep",
        "stopped",
    ]
    assert served.purge.due_ms > boottime_ms() + edge_purge.EVERY_MS // 2
    assert "database or disk is full" in served.status()["last_error"]["words"]


def test_the_purge_is_the_real_one(
    served: Edge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_purge, "EVERY_MS", 20)
    served.setting = replace(served.setting, idle_ms=20)
    served.purge.due_ms = 0
    store = served._store
    package = parse_package(b"package: p\ntasks: {t: {run: 'true', queue: far}}\n", "p.yaml")
    publisher(store)(package)
    run_id = store.call(
        "start_run", p_package_key="p", p_kind="task", p_target_key="t", p_run_key="k", p_input="{}"
    )[0]["run_id"]
    store.call("request_cancel", p_run_id=run_id, p_reason="user", p_actor="test")
    end = time.monotonic() + 10
    served.interrupts = lambda: int(
        not store.read("run_state", run_id=run_id) or time.monotonic() > end
    )
    served.serve()
    assert store.read("run_state", run_id=run_id) == []


def test_an_edge_says_who_holds_the_lock(tmp_path: Path) -> None:
    with only_one(tmp_path):
        with pytest.raises(NotReady, match=f"as pid {os.getpid()}"), only_one(tmp_path):
            raise AssertionError
    with only_one(tmp_path):
        pass


def test_lines_are_bound_and_same_trouble_is_not_repeated(tmp_path: Path) -> None:
    now = 1000.0
    path = tmp_path / "log"
    with path.open("w", encoding="ascii") as out:
        log = Log("text", False, out, lambda: now)
        for number in range(100):
            log.often("started", f"run {number} ö\n\x1b[31m")
        for _ in range(3):
            log.trouble("disk full")
        now += WINDOW_S
        log.tidy()
        now += SAME_AGAIN_S
        for free in range(5):  # in turns, and going in between
            log.trouble(f"no room ({free / 10} MiB)")
            log.trouble("disk full")
            log.over()
        now += CALM_S
        log.over()
        log.over()
    lines = path.read_text().splitlines()
    assert len(lines) == LINES_A_WINDOW + 5
    assert lines[0].endswith(" run 0 \\xf6\\x0a\\x1b[31m")
    assert [line[25:] for line in lines[LINES_A_WINDOW:]] == [
        "trying again: disk full",
        f"{100 - LINES_A_WINDOW} more runs started or ended",
        "trying again: no room (0.0 MiB)",
        "trying again: disk full",
        "it works again",
    ]
    log.say("begin", "to nobody")  # a closed file harms nobody


def test_a_full_disk_costs_a_line_and_no_more() -> None:
    out = open("/dev/full", "w")  # noqa: PTH123, SIM115
    try:
        Log("json", False, out).say("begin", "x")
    finally:
        with suppress(OSError):
            out.close()


def test_an_edge_that_never_started_anything_is_idle_as_well(served: Edge) -> None:
    served.setting = replace(served.setting, idle_ms=100)
    end = time.monotonic() + 1.5
    served.interrupts = lambda: int(time.monotonic() > end)
    served.serve()
    assert served.status()["cycles"] < 45, "it backs off: what its fork server says is heard once"


def test_what_a_connection_works_in_does_not_grow(served: Edge) -> None:
    store = served._store
    package = parse_package(b"package: p\ntasks: {t: {run: 'true'}}\n", "p.yaml")
    publisher(store)(package)
    names = [row[0] for row in store._connection.execute(
        "select name from sqlite_temp_schema where type = 'table'"
    )]  # fmt: skip

    for number in range(PAGE_SIZE + 8):
        run_id = store.call(
            "start_run", p_package_key="p", p_kind="task", p_target_key="t",
            p_run_key=str(number), p_input="{}",
        )[0]["run_id"]  # fmt: skip
        local_cycle(store, Turn())
        store.call("request_cancel", p_run_id=run_id, p_reason="user", p_actor="test")
        local_cycle(store, Turn())
        assert store.read("run_state", run_id=run_id)[0]["status"] == "cancelled"
    counted = "select count(*) from temp."
    rows = {name: store._connection.execute(counted + name).fetchone()[0] for name in names}
    assert len(rows) > 10
    assert max(rows.values()) <= PAGE_SIZE, rows


# -- the journal


def test_a_file_keeps_its_journal_unless_an_edge_changes_it(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    def seen(profile: Profile | None) -> tuple[str, str]:
        with closing(open_sqlite(path, create=True, profile=profile)) as store:
            (mode,) = store._connection.execute("pragma journal_mode").fetchone()
            return store.profile, mode

    assert seen(None) == ("standalone", "wal"), "a new file is written ahead"
    with closing(open_sqlite(path)) as other:
        other.read("run_state")
        begun = time.monotonic()
        assert seen("edge") == ("standalone", "wal"), "others use it"
        assert time.monotonic() - begun < 8
    assert seen("edge") == ("edge", "truncate")
    assert seen(None) == ("edge", "truncate"), "a command leaves it alone"
    assert seen("standalone") == ("standalone", "wal")
