"""Effects on SQLite: compare-and-swap, faults of one run, and rows that never change."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql.errors import Conflict, Violated
from qinglong_sql.stage import STAGES, run_stage
from qinglong_sql.store.sqlite import SqliteStore
from tests import acting
from tests.acting import PAIR
from tests.stores import FakeClock, everything, sqlite_store


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
