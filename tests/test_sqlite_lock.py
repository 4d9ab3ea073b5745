"""The lock of a SQLite file: who needs none takes none, and who waits is not kept waiting."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql.store import Contended
from qinglong_sql.store.sqlite import Profile, SqliteStore
from qinglong_sql.store.sqlite_lock import PATIENT_AFTER_S, PAUSES_S
from tests import acting
from tests.stores import FakeClock, sqlite_store

LOCK = "qinglong_sql.store.sqlite_lock"
SWEEP = {"p_after_run_id": "", "p_limit": 32}


@pytest.fixture(params=["edge", "standalone"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteStore]:
    profile: Profile = request.param
    with closing(sqlite_store(tmp_path, FakeClock(), profile=profile)) as opened:
        yield opened


@pytest.fixture
def other(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """Another writer, which holds the lock."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield connection


def test_a_sweep_that_finds_nothing_asks_for_no_lock(
    store: SqliteStore, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{LOCK}.SQLITE_BUSY_MS", 1)
    other.execute("rollback")
    run_id = acting.begun(store, {"a": []})
    other.execute("begin immediate")
    assert store.call("sweep_agenda", **SWEEP) == [{"run_id": run_id, "stages": 0}]
    with pytest.raises(Contended):
        acting.cancel(store, run_id)


def test_a_sweep_that_finds_something_puts_it_back_under_the_lock(store: SqliteStore) -> None:
    acting.publish(store, {"a": []})
    run_id = acting.start(store)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as hand:
        hand.execute("delete from agenda")
        hand.execute("begin immediate")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"{LOCK}.SQLITE_BUSY_MS", 1)
            with pytest.raises(Contended):
                store.call("sweep_agenda", **SWEEP)
    assert store.call("sweep_agenda", **SWEEP) == [{"run_id": run_id, "stages": 1}]
    assert store.call("sweep_agenda", **SWEEP) == [{"run_id": run_id, "stages": 0}]


def test_who_waits_for_a_commit_tries_each_millisecond(
    store: SqliteStore, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds
        if len(pauses) == 150:
            other.execute("rollback")

    monkeypatch.setattr(f"{LOCK}.time.monotonic", lambda: now[0])
    monkeypatch.setattr(f"{LOCK}.time.sleep", sleep)
    acting.publish(store)
    quick = [one for one in pauses if one == PAUSES_S[0]]
    assert PATIENT_AFTER_S * 1000 <= len(quick) <= PATIENT_AFTER_S * 1000 + 2
    assert pauses == quick + [PAUSES_S[1]] * (150 - len(quick))


def test_a_lock_that_is_never_let_go_is_contended_and_changes_no_time_out(
    store: SqliteStore, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(f"{LOCK}.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(f"{LOCK}.time.monotonic", lambda: now[0])
    with pytest.raises(Contended):
        acting.publish(store)
    assert now[0] == pytest.approx(5.0, abs=0.1)
    assert store._connection.execute("pragma busy_timeout").fetchone() == (5_000,)
    other.execute("rollback")
    acting.publish(store)
