"""Retention: a run that ended long ago goes with all that is its own, and nothing else does.

The catalog says which tables those are, so one that comes later cannot be forgotten.
"""

import itertools
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qinglong_sql.retention import Purged, purge
from qinglong_sql.store import Malformed, Store
from qinglong_sql.store.sqlite import SqliteStore
from tests import acting, facts, oracle, sqltext, stories
from tests.engines import Engine
from tests.stores import DAWN_MS, FakeClock

FAR_MS = 4_000_000_000_000
DAY_MS = 86_400_000
OWNED = [
    name
    for name, table in sqltext.tables("sqlite").items()
    if "run_id" in table.keeps + table.moves and name != "run"
]
# what a run that has ended has no rows in, unless somebody put them there
STRAY = {
    "agenda": "(run_id, stage, due_at_ms) values ('{}', 'frontier', 0)",
    "run_fault": "(run_id, stage, error, fault_count, first_at_ms, last_at_ms, next_try_at_ms)"
    " values ('{}', 'frontier', 'x', 1, 0, 0, 0)",
    "trigger_run": "(run_id, package_key, trigger_key) values ('{}', 'nightly', 'night')",
}


@contextmanager
def raw(engine: Engine, *, guarded: bool = True) -> Iterator[Any]:
    """A foreign hand on the database, with `ql` in the path; past foreign keys when not guarded."""
    if engine.kind == "sqlite":
        path = engine.dsn.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(f"pragma foreign_keys = {'on' if guarded else 'off'}")
            connection.execute("pragma recursive_triggers = on")
            yield connection
        return
    with psycopg.connect(engine.dsn, autocommit=True) as connected:
        connected.execute("set search_path = ql, pg_catalog")
        if not guarded:
            connected.execute("set session_replication_role = replica")
        yield connected


def rich(store: Store, clock: FakeClock, key: str) -> str:
    """A run that was cancelled after everything that can be said of a run was said."""
    acting.publish(store, {"a": [], "b": ["a"]})
    run_id = acting.start(store, key=key)
    acting.admit(store, run_id)
    first = acting.lease(store, f"{key} 1", run_id=run_id)["a"]
    acting.run(store, first)
    acting.report(store, first, output='{"x":1}')
    acting.report(store, first, how="stop", exit_code=None)
    acting.advance(store, run_id)
    second = acting.lease(store, f"{key} 2", run_id=run_id)["b"]
    acting.run(store, second)
    acting.cancel(store, run_id)
    store.call("attest_attempts", p_commands=acting.commands(second, reason="gone"))
    acting.converge(store, run_id)
    assert acting.ended(store, run_id)[0] == "cancelled"
    clock.advance(1_000)
    return run_id


def purge_page(store: Store, before_ms: int = FAR_MS, limit: int = 32) -> list[str]:
    rows = store.call("purge_runs", p_before_ms=before_ms, p_limit=limit)
    return [row["run_id"] for row in rows]


def kept(engine: Engine, run_id: str) -> dict[str, list[str]]:
    """Rows of all tables that name a run."""
    found = acting.everything(engine)
    return {name: [row for row in rows if run_id in row] for name, rows in found.items()}


def test_a_purge_empties_every_table_that_names_a_run(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    gone, stays = rich(store, clock, "gone"), rich(store, clock, "stays")
    with raw(engine) as connection:
        for name, row in STRAY.items():
            connection.execute(f"insert into {name} {row.format(gone)}")
    empty = [name for name in OWNED if not kept(engine, gone)[name]]
    assert empty == [], "this test fills no row of"
    before = kept(engine, stays)
    assert purge_page(store, clock.now_ms - 1_000) == [gone]
    assert {name: rows for name, rows in kept(engine, gone).items() if rows} == {}
    assert kept(engine, stays) == before
    assert acting.unbroken(store)
    assert purge_page(store, clock.now_ms - 1_000) == []


def test_what_belongs_to_no_run_is_a_violation_in_every_table(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    run_id = rich(store, clock, "one")
    with raw(engine, guarded=False) as connection:
        for name, row in STRAY.items():
            connection.execute(f"insert into {name} {row.format(run_id)}")
        columns = sqltext.tables("sqlite")["run"]
        listed = ", ".join(columns.keeps + columns.moves)
        connection.execute(f"create table aside as select {listed} from run")
        connection.execute("delete from run")
        wrong = {(row["rule"], row["entity_id"]) for row in store.read("violation")}
        for name in OWNED:
            rows = connection.execute(f"select * from {name}")
            place = [column[0] for column in rows.description]
            keys = ("sequence", "attempt_id", "step_key", "stage", "run_id")
            for one in rows.fetchall():
                cells = dict(zip(place, one, strict=True))
                entity = str(next(cells[key] for key in keys if key in cells))
                assert ("every_row_belongs_to_a_run", entity) in wrong, name
        connection.execute("drop table aside")


@pytest.fixture(params=["sqlite", "postgres"])
def bare(request: pytest.FixtureRequest) -> Iterator[facts.Connection]:
    """The tables and views alone."""
    if request.param == "sqlite":
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            facts.install(connection)
            yield connection
        return
    with psycopg.connect(request.getfixturevalue("empty_dsn"), autocommit=True) as connected:
        facts.install(connected)
        yield connected


def test_the_view_says_what_the_oracle_says(bare: facts.Connection) -> None:
    """For every status of a run, a step, an attempt and a lease; and a changed rule is seen."""
    states = [*stories.shapes(itertools.count(1)), *stories.legal_stories(itertools.count(9_000))]
    facts.write(bare, states)
    wanted = {state.run_id for state in states if oracle.may_go(state)}
    assert 100 < len(wanted) < len(states)
    assert facts.read(bare, "retention_due", "run_id, finished_at_ms").keys() == wanted
    text = facts.decision("retention")
    for rule, other in (
        ("a.finished_at_ms is null", "a.finished_at_ms is not null"),
        ("r.finished_at_ms is not null\n  and r.status <> 'running'", "r.step_count > 0"),
    ):
        assert text.count(rule) == 1
        facts.decide(bare, {"retention": text.replace(rule, other)})
        assert facts.read(bare, "retention_due", "run_id, finished_at_ms").keys() != wanted


def test_only_what_has_ended_before_goes_and_what_ended_first_goes_first(
    store: Store, clock: FakeClock
) -> None:
    acting.publish(store, {"a": []})
    runs = [acting.start(store, key=str(number)) for number in range(6)]
    for run_id in (runs[3], runs[1], runs[4], runs[2]):
        acting.admit(store, run_id)
        acting.finish(store, run_id)
        clock.advance(1_000)
        acting.advance(store, run_id)
    live = acting.run_row(store, runs[0])
    assert purge_page(store, DAWN_MS) == []
    third = acting.run_row(store, runs[4])["finished_at_ms"]
    assert purge_page(store, third + 1, limit=2) == [runs[3], runs[1]]
    assert purge_page(store, third) == []
    assert purge_page(store) == [runs[4], runs[2]]
    assert purge_page(store) == []
    assert acting.run_row(store, runs[0]) == live
    assert {row["run_id"] for row in store.read("run_state")} == {runs[0], runs[5]}
    assert acting.unbroken(store)


def test_a_run_that_executes_something_stays(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    """It cannot be, and a purge would not make it worse."""
    run_id = rich(store, clock, "one")
    with raw(engine) as connection:
        connection.execute(
            "update task_attempt set status = 'running', result_code = null, finished_at_ms = null"
            f" where attempt_id = '{run_id}-2'"
        )
    assert purge_page(store) == []
    assert acting.run_row(store, run_id)["status"] == "cancelled"


@pytest.mark.parametrize("wrong", [{"p_limit": 0}, {"p_limit": 33}, {"p_limit": None},
                                   {"p_before_ms": None}])  # fmt: skip
def test_a_page_without_bounds_is_refused(
    store: Store, clock: FakeClock, wrong: dict[str, int | None]
) -> None:
    run_id = rich(store, clock, "one")
    with pytest.raises(Malformed):
        store.call("purge_runs", **({"p_before_ms": FAR_MS, "p_limit": 1} | wrong))
    assert acting.run_row(store, run_id)


def test_the_same_key_is_a_new_run_after_a_purge(store: Store, clock: FakeClock) -> None:
    run_id = rich(store, clock, "one")
    assert purge_page(store) == [run_id]
    assert acting.start(store, key="one") == run_id
    assert acting.run_row(store, run_id)["status"] == "running"
    assert acting.unbroken(store)


def test_a_worker_that_comes_late_is_told_that_nothing_is_known(
    store: Store, clock: FakeClock
) -> None:
    acting.publish(store, {"a": []})
    run_id = acting.start(store)
    acting.admit(store, run_id)
    held = acting.lease(store)["a"]
    acting.run(store, held)
    acting.cancel(store, run_id)
    store.call("attest_attempts", p_commands=acting.commands(held, reason="gone"))
    acting.converge(store, run_id)
    assert purge_page(store) == [run_id]
    assert [row["code"] for row in acting.report(store, held)] == ["QL404"]
    assert acting.unbroken(store)


def test_a_run_that_somebody_holds_is_left_for_the_next_page(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    first, second = rich(store, clock, "first"), rich(store, clock, "second")
    if engine.kind == "sqlite":
        assert purge_page(store) == [first, second]  # one writer: nothing can be held
        return
    with psycopg.connect(engine.dsn) as other:
        other.execute("select from ql.run where run_id = %s for no key update", [first])
        assert purge_page(store, limit=1) == [second]
    assert purge_page(store) == [first]


def test_sqlite_lets_history_go_only_with_its_run(sqlite_dsn: str, clock_of: FakeClock) -> None:
    """Neither a living run nor one that has ended loses a row, nor itself, to a stray delete."""
    engine = Engine("sqlite", sqlite_dsn, None)
    with closing(SqliteStore(Path(sqlite_dsn[10:]), clock=clock_of.now)) as store:
        ended = rich(store, clock_of, "ended")
        living = acting.start(store, key="living")
        acting.admit(store, living)
        acting.lease(store, "o9", run_id=living)
    before = acting.everything(engine)
    with raw(engine) as connection:
        guarded = [name for name in OWNED if name not in STRAY]
        for name in guarded:
            with pytest.raises(sqlite3.IntegrityError, match="QL500"):
                connection.execute(f"delete from {name}")
        with pytest.raises(sqlite3.IntegrityError, match="QL500 a run goes only when"):
            connection.execute("delete from run where run_id = ?", [living])
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            connection.execute("delete from run where run_id = ?", [ended])
        with pytest.raises(sqlite3.IntegrityError, match="QL409"):
            connection.execute("insert or replace into run_event select * from run_event limit 1")
    assert acting.everything(engine) == before


def test_sqlite_finds_what_is_due_by_its_own_index(sqlite_dsn: str) -> None:
    """Oldest first without a sort, so that a page costs a page however many runs are due."""
    with closing(sqlite3.connect(sqlite_dsn[10:])) as connection:
        plan = connection.execute(
            "explain query plan select d.run_id from retention_due as d where d.finished_at_ms < ?"
            " order by d.finished_at_ms, d.run_id limit ?",
            (1, 1),
        ).fetchall()
    told = " · ".join(row[3] for row in plan)
    assert "run_ended (finished_at_ms>? AND finished_at_ms<?)" in told.replace("USING ", ""), told
    assert "TEMP B-TREE" not in told and "SCAN" not in told, told


@pytest.fixture
def clock_of() -> FakeClock:
    return FakeClock()


def test_a_kill_between_two_pages_leaves_nothing_half(
    store: Store, engine: Engine, clock: FakeClock, tmp_path: Path
) -> None:
    """Logs go after their page; what a kill leaves of them goes with the next purge."""
    runs = [rich(store, clock, str(number)) for number in range(4)]
    acting.publish(store, {"a": []})
    living = acting.start(store, key="living")
    logs = {run_id: tmp_path / "0" / "log" / run_id for run_id in (*runs, living)}
    for path in logs.values():
        path.mkdir(parents=True)
        (path / "a.1.log").write_text("hello")
    stranger = tmp_path / "0" / "log" / "notes"
    stranger.mkdir()

    def killed(done: Purged) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        purge(store, FAR_MS, folder=tmp_path, limit=2, on_page=killed)
    assert purge_page(store, limit=1) == [runs[2]]  # another purge, killed before its logs went
    assert logs[runs[2]].exists()
    done = purge(store, FAR_MS, folder=tmp_path)
    assert done == Purged(runs=1, logs=2, log_bytes=10)
    assert [run_id for run_id, path in logs.items() if path.exists()] == [living]
    assert stranger.exists()
    assert acting.unbroken(store)


def test_purges_side_by_side_find_folders_that_another_one_removes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may go at any moment: before it is listed, while it is, and before a file is met."""
    places = [tmp_path / "0" / "log" / f"ru{number:024x}" for number in range(40)]
    for path in places:
        path.mkdir(parents=True)
        (path / "a.1.log").write_text("hello")
    real, turn = Path.iterdir, itertools.count()

    def iterdir(path: Path) -> Iterator[Path]:
        """Half of the folders are taken away by somebody else, before or after a look into them."""
        number = next(turn)
        if number % 4 == 1:
            shutil.rmtree(path)
        found = list(real(path))
        if number % 4 == 3:
            shutil.rmtree(path)
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    done = purge(store, FAR_MS, folder=tmp_path)
    assert done.runs == 0 and 20 <= done.logs <= 30 and done.log_bytes <= 40 * 5
    assert not any(path.exists() for path in places)


def test_a_young_log_of_no_run_stays(store: Store, tmp_path: Path) -> None:
    """It may be of a run that a restored database has not heard of."""
    path = tmp_path / "0" / "log" / f"ru{'0' * 24}"
    path.mkdir(parents=True)
    assert purge(store, 1_000, folder=tmp_path) == Purged()
    assert path.exists()


def test_a_limit_holds_over_pages(store: Store, clock: FakeClock) -> None:
    acting.publish(store, {"a": []})
    for number in range(40):
        run_id = acting.start(store, key=str(number))
        acting.cancel(store, run_id)
        acting.converge(store, run_id)
    told: list[int] = []
    done = purge(store, FAR_MS, folder=None, limit=35, on_page=lambda one: told.append(one.runs))
    assert done.runs == told[-1] == 35
    assert len(store.read("run_state")) == 5
