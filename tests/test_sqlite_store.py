"""The SQLite engine itself: connections, files, transactions, locks, errors and reads."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql import migrate
from qinglong_sql.errors import Fenced, Malformed, NotReady, Unknown
from qinglong_sql.stage import STAGES, run_stage
from qinglong_sql.store import VIEWS, Contended, Span, open_store
from qinglong_sql.store.sqlite import Profile, SqliteStore
from tests import acting
from tests.acting import PAIR
from tests.engines import NEWEST
from tests.stores import FakeClock, everything, install, sqlite_store


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[SqliteStore]:
    with closing(sqlite_store(tmp_path, clock)) as opened:
        yield opened


@pytest.fixture
def other(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """A foreign hand on the same file, outside all rules."""
    with closing(sqlite3.connect(store.path, isolation_level=None, timeout=0)) as connection:
        yield connection


def pragma(store: SqliteStore, name: str) -> object:
    return store._connection.execute(f"pragma {name}").fetchone()[0]


# -- the connection


@pytest.mark.parametrize(
    ("profile", "journal", "cache"), [("standalone", "wal", -16384), ("edge", "truncate", -4096)]
)
def test_a_profile_sets_what_survives_power_loss_and_what_memory_it_takes(
    tmp_path: Path, clock: FakeClock, profile: Profile, journal: str, cache: int
) -> None:
    with closing(sqlite_store(tmp_path, clock, profile=profile)) as store:
        assert store.profile == profile
        assert pragma(store, "journal_mode") == journal
        assert pragma(store, "synchronous") == 2  # full
        assert pragma(store, "cache_size") == cache


def test_every_connection_keeps_foreign_keys_recursive_triggers_and_distrust(
    store: SqliteStore,
) -> None:
    wanted = {"foreign_keys": 1, "recursive_triggers": 1, "trusted_schema": 0, "page_size": 1024}
    assert {name: pragma(store, name) for name in wanted} == wanted


def test_a_second_store_on_the_same_file_sees_and_adds(
    store: SqliteStore, tmp_path: Path, clock: FakeClock
) -> None:
    acting.publish(store, PAIR)
    with closing(sqlite_store(tmp_path, clock)) as second:
        run_id = acting.start(second)
    assert acting.statuses(store, run_id) == {"a": "ready", "b": "pending"}


# -- opening


def test_a_missing_file_is_told_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="or migrate"):
        open_store(f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_empty_is_not_ready(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(NotReady, match="migrate"):
        open_store(f"sqlite:///{path}")


def test_a_file_of_another_revision_is_not_ready(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    install(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma user_version = 9999")
        connection.execute("update alembic_version set version_num = '9999'")
        connection.commit()
    with pytest.raises(NotReady, match="9999"):
        open_store(f"sqlite:///{path}")


def test_create_makes_the_folder_and_the_newest_revision(tmp_path: Path) -> None:
    dsn = f"sqlite:///{tmp_path}/deep/er/qinglong.db"
    with closing(open_store(dsn, create=True)) as store:
        assert store.engine == "sqlite" and store.read("run_state") == []
    assert migrate.current(dsn) == NEWEST
    with closing(open_store(dsn)) as store:
        assert store.read("violation") == []


def test_another_kind_of_dsn_is_malformed() -> None:
    with pytest.raises(Malformed):
        open_store("mysql://secret@host/x")


# -- calls


def test_an_unknown_step_is_a_key_error_and_internal_steps_are_unknown(store: SqliteStore) -> None:
    for name in ("no_such_step", "apply_effects", "workspace", "due_task_cancellations"):
        with pytest.raises(KeyError):
            store.call(name)


def test_other_parameters_are_a_type_error(store: SqliteStore) -> None:
    with pytest.raises(TypeError):
        store.call("advance_frontier")
    with pytest.raises(TypeError):
        store.call("advance_frontier", p_run_id="r", now_ms=5)


def test_a_refused_call_leaves_nothing_and_the_store_goes_on(store: SqliteStore) -> None:
    acting.publish(store, PAIR)
    before = everything(store.path)
    with pytest.raises(Unknown, match="QL404 no run nobody"):
        acting.advance(store, "nobody")
    with pytest.raises(Fenced):
        acting.offer_rows(store, ["o1"])
    with pytest.raises(Malformed):
        acting.start(store, text="[]")
    assert everything(store.path) == before
    assert acting.start(store)


@pytest.mark.parametrize("text", ["a\0b", "\ud800", 2**63])
def test_what_no_database_would_store_is_malformed(store: SqliteStore, text: object) -> None:
    acting.publish(store, PAIR)
    with pytest.raises(Malformed):
        acting.start(store, key=text)  # type: ignore[arg-type]
    assert store.read("run_state") == []


def test_a_batch_is_one_transaction_and_one_time(store: SqliteStore, clock: FakeClock) -> None:
    acting.publish(store, PAIR)
    asked: list[int] = []

    def now() -> int:
        asked.append(clock.advance(1))
        return clock.now_ms

    store.clock = now
    start = {"p_package_key": "nightly", "p_kind": "workflow", "p_target_key": "flow"}
    first, second = store.batch(
        [("start_run", start | {"p_run_key": key, "p_input": "{}"}) for key in ("x", "y")]
    )
    assert len(asked) == 1
    rows = store.read("run_state")
    assert {row["run_id"] for row in rows} == {first[0]["run_id"], second[0]["run_id"]}
    assert {row["admitted_at_ms"] for row in rows} == set(asked)


def test_a_batch_that_is_refused_leaves_nothing_of_its_first_calls(store: SqliteStore) -> None:
    acting.publish(store, PAIR)
    before = everything(store.path)
    start = {"p_package_key": "nightly", "p_kind": "workflow", "p_target_key": "flow"}
    with pytest.raises(Unknown):
        store.batch(
            [
                ("start_run", start | {"p_run_key": "x", "p_input": "{}"}),
                ("advance_frontier", {"p_run_id": "nobody"}),
            ]
        )
    assert everything(store.path) == before


def test_steps_take_turns_between_threads(store: SqliteStore) -> None:
    acting.publish(store, PAIR)
    errors: list[Exception] = []

    def starts(name: str) -> None:
        try:
            for number in range(10):
                acting.start(store, key=f"{name}{number}")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=starts, args=(name,)) for name in "abc"]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not errors and len(store.read("run_state")) == 30 and acting.unbroken(store)


# -- locks


def test_a_file_that_stays_locked_is_contended_and_nothing_is_half_done(
    store: SqliteStore, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qinglong_sql.store.sqlite_lock.SQLITE_BUSY_MS", 20)
    acting.publish(store, PAIR)
    other.execute("begin immediate")
    with pytest.raises(Contended):
        acting.start(store)
    with pytest.raises(Contended):  # a page ends, it does not call every run contended
        store.page(STAGES["frontier"], (-1, ""), 32) or acting.start(store)
    other.execute("rollback")
    assert acting.start(store)


def test_a_look_at_what_is_due_takes_no_lock(store: SqliteStore, other: sqlite3.Connection) -> None:
    store._connection.execute("pragma busy_timeout = 0")
    other.execute("begin immediate")
    assert all(run_stage(store, stage).scanned == 0 for stage in STAGES.values())


def test_a_reader_that_lingers_under_truncate_delays_the_commit_and_no_more(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qinglong_sql.store.sqlite_lock.SQLITE_BUSY_MS", 100)
    with closing(sqlite_store(tmp_path, clock, profile="edge")) as store:
        acting.publish(store, PAIR)
        acting.start(store)
        reader = sqlite3.connect(store.path, check_same_thread=False)
        half_read = reader.execute("select * from step_run")
        half_read.fetchone()
        timer = threading.Timer(0.25, half_read.close)
        timer.start()
        try:
            assert acting.start(store, key="two")
        finally:
            timer.join()
        reader.close()
        assert len(store.read("run_state")) == 2


def test_a_reader_that_never_goes_ends_the_call_and_nothing_stays(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qinglong_sql.store.sqlite_lock.SQLITE_BUSY_MS", 5)
    with closing(sqlite_store(tmp_path, clock, profile="edge")) as store:
        acting.publish(store, PAIR)
        acting.start(store)
        with closing(sqlite3.connect(store.path)) as reader:
            half_read = reader.execute("select * from step_run")
            half_read.fetchone()
            with pytest.raises(Contended):
                acting.start(store, key="two")
            half_read.close()
        assert len(store.read("run_state")) == 1
        assert acting.start(store, key="two")


# -- reads


def test_a_read_filters_orders_and_limits_by_columns_of_the_view(store: SqliteStore) -> None:
    acting.publish(store, PAIR)
    runs = sorted(acting.start(store, key=key) for key in "uvwxyz")
    rows = store.read("run_state", order="run_id desc", limit=2, status="running")
    assert [row["run_id"] for row in rows] == runs[:-3:-1]
    assert len(store.read("run_state", result_code=None)) == 6
    found = store.read("run_state", order="run_id", run_id=Span.prefix(runs[0][:4]))
    assert [row["run_id"] for row in found] == [one for one in runs if one[:4] == runs[0][:4]]


@pytest.mark.parametrize(
    ("view", "options"),
    [
        ("sqlite_schema", {}),
        ("run", {}),
        ("run_state; drop table run", {}),
        ("run_state", {"no_column": 1}),
        ("run_state", {"order": "no_column"}),
        ("run_state", {"order": "run_id; drop table run"}),
        ("run_state", {"order": "run_id descending"}),
    ],
)
def test_no_name_of_a_read_comes_from_input(
    store: SqliteStore, view: str, options: dict[str, object]
) -> None:
    with pytest.raises(KeyError):
        store.read(view, **options)  # type: ignore[arg-type]


def test_every_view_of_the_list_is_there_and_no_other(store: SqliteStore) -> None:
    names = store._connection.execute("select name from sqlite_schema where type = 'view'")
    assert {name for (name,) in names} == VIEWS
    assert all(store.read(view) is not None for view in VIEWS)
