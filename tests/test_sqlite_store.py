"""The SQLite engine itself: connections, transactions, errors, what never changes, no scans."""

import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql import migrate
from qinglong_sql.errors import Conflict, Fenced, Malformed, NotReady, Unknown, Violated
from qinglong_sql.stage import STAGES, run_stage
from qinglong_sql.store import VIEWS, Contended, Span, open_store
from qinglong_sql.store.sqlfiles import Part, sqlite_steps
from qinglong_sql.store.sqlite import Profile, SqliteStore
from qinglong_sql.store.steps import STEPS
from tests import acting
from tests.engines import NEWEST
from tests.stores import FakeClock, install, sqlite_store

PAIR = {"a": [], "b": ["a"]}
WORKSHOP = ("connect", "standalone", "edge", "workspace")


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


def everything(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("select name from sqlite_schema where type = 'table'").fetchall()
        return {name: connection.execute(f"select * from {name}").fetchall() for (name,) in names}


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


# -- compare-and-swap


def apply(store: SqliteStore, *rows: tuple[object, ...]) -> None:
    """Apply effects that no decision asked for."""
    step = store._steps["apply_effects"]
    marks = ", ".join("?" * 11)
    cursor = store._connection.cursor()
    cursor.execute("delete from temp.effect")
    cursor.executemany(f"insert into temp.effect values ({marks})", rows)
    store._run([(step, {})])


def step_effect(run_id: str, key: str, before: str | None, after: str, version: int,
                ordinal: int = 1) -> tuple[object, ...]:  # fmt: skip
    event = f"step.{after}"
    return (run_id, ordinal, "step", key, before, after, version, None, event, None, None)


@pytest.mark.parametrize(
    ("effect", "message"),
    [
        (("a", "ready", "running", 2), "a step is not as"),
        (("a", "pending", "ready", 1), "a step is not as"),
        (("z", "ready", "running", 1), "a step is not as"),
    ],
)
def test_a_lost_compare_and_swap_is_a_conflict_and_leaves_nothing(
    store: SqliteStore, effect: tuple[str, str | None, str, int], message: str
) -> None:
    acting.publish(store, PAIR)
    run_id = acting.start(store)
    before = everything(store.path)
    with pytest.raises(Conflict, match=message):
        apply(store, step_effect(run_id, *effect))
    assert everything(store.path) == before


def test_an_insert_of_what_is_there_is_a_conflict(store: SqliteStore) -> None:
    acting.publish(store, PAIR)
    run_id = acting.start(store)
    acting.admit(store, run_id)
    event = "workflow.task_attempt_admitted"
    again = ("attempt", f"{run_id}-1", None, "claimed", 0, None, event, None, "a")
    with pytest.raises(Conflict, match="task_attempt"):
        apply(store, (run_id, 1, *again))
    assert acting.unbroken(store)


def test_an_effect_on_a_missing_run_is_a_conflict(store: SqliteStore) -> None:
    with pytest.raises(Conflict, match="a run is not as"):
        apply(store, step_effect("nobody", "a", "ready", "running", 1))


def test_effects_of_several_runs_are_applied_together_and_each_entity_once(
    store: SqliteStore, clock: FakeClock
) -> None:
    acting.publish(store, PAIR)
    runs = [acting.start(store, key=key) for key in ("x", "y")]
    clock.advance(5)
    apply(
        store,
        *(
            step_effect(run_id, "a", before, after, version, ordinal)
            for run_id in runs
            for before, after, version, ordinal in (
                ("ready", "running", 1, 3),
                ("running", "succeeded", 2, 7),
            )
        ),
    )
    for run_id in runs:
        row = acting.step(store, run_id)
        assert (row["status"], row["version"], row["finished_at_ms"]) == (
            "succeeded", 3, clock.now_ms,
        )  # fmt: skip
        assert acting.events(store, run_id)[-2:] == ["step.running", "step.succeeded"]
        assert acting.run_row(store, run_id)["version"] == 5


# -- pages and faults


def test_a_run_that_raises_is_faulted_and_hides_nobody(
    store: SqliteStore, other: sqlite3.Connection, clock: FakeClock
) -> None:
    acting.publish(store, PAIR)
    runs = [acting.start(store, key=key) for key in ("x", "y")]
    for run_id in runs:
        acting.admit(store, run_id)
        acting.finish(store, run_id)
    other.execute("update run set version = version - 1 where run_id = ?", (runs[0],))
    tally = run_stage(store, STAGES["frontier"])
    assert (tally.scanned, tally.applied, tally.faulted) == (2, 1, 1)
    assert acting.statuses(store, runs[1])["b"] == "ready"
    (fault,) = store.read("fault_state")
    assert (fault["run_id"], fault["stage"], fault["fault_count"]) == (runs[0], "frontier", 1)
    assert "run_event" in fault["error"]

    assert run_stage(store, STAGES["frontier"]).scanned == 0  # it waits
    clock.set(fault["next_try_at_ms"])
    assert run_stage(store, STAGES["frontier"]).faulted == 1
    again = store.read("fault_state")[0]
    assert (again["fault_count"], again["next_try_at_ms"]) == (2, clock.now_ms + 2_000)

    other.execute("update run set version = version + 1 where run_id = ?", (runs[0],))
    clock.set(again["next_try_at_ms"])
    assert run_stage(store, STAGES["frontier"]).applied == 1
    assert store.read("fault_state") == [] and acting.unbroken(store)


def test_cancelled_task_runs_settle_on_their_own_road(store: SqliteStore) -> None:
    acting.publish(store, PAIR)
    runs = [acting.start(store, kind="task", key=key) for key in ("x", "y", "z")]
    for run_id in runs:
        acting.admit(store, run_id)
    held = acting.lease(store)["main"]
    for run_id in runs:
        acting.cancel(store, run_id)
    tally = run_stage(store, STAGES["task_cancellation"])
    assert (tally.scanned, tally.settled, tally.settled_attempts) == (2, 2, 2)
    left = store.read("run_state", status="running")
    assert [row["run_id"] for row in left] == [held.row["run_id"]]
    assert run_stage(store, STAGES["cancellation"]).blocked == 1
    assert acting.unbroken(store)


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


# -- what is immutable

APPEND_ONLY = {
    "task_revision": "queue",
    "workflow_revision": "step_count",
    "workflow_step": "need_count",
    "workflow_ancestor": "distance",
    "run_input": "input",
    "step_output": "output",
    "cancel_intent": "reason",
    "attempt_offer": "worker_id",
    "attempt_report": "error",
    "attestation": "reason",
    "refused_report": "code",
    "run_event": "to_status",
}
KEEPS = {
    "package_generation": "digest manifest published_at_ms",
    "run": "target_id input_digest deadline_at_ms admitted_at_ms",
    "step_run": "task_id",
    "task_attempt": "epoch jitter queue number",
    "attempt_lease": "run_id",
    "agenda": "stage",
    "trigger": "trigger_key",
}


@pytest.fixture
def lived(store: SqliteStore, clock: FakeClock) -> SqliteStore:
    """A store with a row in every table that a test of immutability looks at."""
    value = acting.model({"work": acting.task()}, {"flow": acting.workflow(PAIR)})
    value["triggers"] = {
        "night": {
            "cron": "0 2 * * *", "kind": "workflow", "misfire": "fire_once", "overlap": "allow",
            "target": "flow", "tz": "UTC",
        }
    }  # fmt: skip
    acting.publish_model(store, value)
    run_id = acting.start(store)
    acting.admit(store, run_id)
    held = acting.lease(store)["a"]
    acting.run(store, held)
    acting.report(store, held, output='{"x":1}')
    acting.report(store, held, how="stop", exit_code=None)
    acting.advance(store, run_id)
    later = acting.lease(store, "o2")["b"]
    clock.advance(3_600_000)
    acting.recover(store, later.row["run_id"])
    acting.cancel(store, run_id)
    return store


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_history_and_inputs_are_append_only(
    lived: SqliteStore, other: sqlite3.Connection, table: str
) -> None:
    other.execute("pragma recursive_triggers = on")
    before = other.execute(f"select * from {table}").fetchall()
    assert before, f"nothing in {table}"
    column = APPEND_ONLY[table]
    for text in (
        f"update {table} set {column} = {column}",
        f"delete from {table}",
        f"insert into {table} select * from {table} limit 1",
        f"insert or replace into {table} select * from {table} limit 1",
        f"insert or ignore into {table} select * from {table} limit 1",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="QL"):
            other.execute(text)
    assert other.execute(f"select * from {table}").fetchall() == before


@pytest.mark.parametrize(
    ("table", "column"), [(table, one) for table, many in KEEPS.items() for one in many.split()]
)
def test_an_immutable_column_cannot_be_updated(
    lived: SqliteStore, other: sqlite3.Connection, table: str, column: str
) -> None:
    assert other.execute(f"select count(*) from {table}").fetchone()[0]
    with pytest.raises(sqlite3.IntegrityError, match="QL500"):
        other.execute(f"update {table} set {column} = {column}")


def test_what_moves_may_move_and_what_breaks_a_rule_of_a_table_is_violated(
    lived: SqliteStore, other: sqlite3.Connection
) -> None:
    other.execute("update run set updated_at_ms = updated_at_ms")
    run_id = lived.read("run_state")[0]["run_id"]
    with pytest.raises(Violated):
        effect = ("step", "b", "ready", "retry_wait", 3, None, "step.retry_wait", None, None)
        apply(lived, (run_id, 1, *effect))


# -- the files


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
