"""Agenda: what is due, in order; lost rows come back; runs that raise wait (DESIGN §5, §6)."""

import sqlite3
from contextlib import closing

import psycopg
import pytest

from qinglong_sql.errors import Malformed, Unknown
from tests import acting
from tests.acting import Engine, Store
from tests.stores import FakeClock


def forget(engine: Engine, run_id: str, stage: str) -> None:
    """Delete a row of the agenda behind everybody's back."""
    if engine.kind == "sqlite":
        with closing(sqlite3.connect(engine.dsn.removeprefix("sqlite:///"))) as connection:
            connection.execute("delete from agenda where run_id = ? and stage = ?", [run_id, stage])
            connection.commit()
        return
    with psycopg.connect(engine.dsn, autocommit=True) as connection:
        text = "delete from ql.agenda where run_id = %s and stage = %s"
        connection.execute(text, [run_id, stage])


def due(store: Store, stage: str, after: tuple[int, str] = acting.START, limit: int = 32):  # type: ignore[no-untyped-def]
    rows = store.call(
        "due_page",
        p_stage=stage,
        p_after_due_at_ms=after[0],
        p_after_run_id=after[1],
        p_limit=limit,
    )
    return [(row["due_at_ms"], row["run_id"]) for row in rows]


def test_what_is_due_comes_oldest_first_and_page_by_page(store: Store, clock: FakeClock) -> None:
    acting.publish(store, {"a": []})
    runs = []
    for key in ("one", "two", "three"):
        runs.append((clock.now_ms, acting.start(store, key=key)))
        clock.advance(10)
    first = due(store, "task_admission", limit=2)
    assert first == runs[:2]
    assert due(store, "task_admission", after=first[-1], limit=2) == runs[2:]
    assert due(store, "frontier") == []


def test_what_is_not_due_yet_is_not_shown(store: Store, clock: FakeClock) -> None:
    acting.publish(store, {"a": []}, run_timeout_ms=5_000)
    run_id = acting.start(store)
    assert due(store, "deadline") == []
    clock.advance(4_999)
    assert due(store, "deadline") == []
    clock.advance(1)
    assert due(store, "deadline") == [(clock.now_ms, run_id)]


@pytest.mark.parametrize("stage", ["task_admission", "deadline"])
def test_the_sweep_puts_back_what_was_lost(store: Store, engine: Engine, stage: str) -> None:
    acting.publish(store, {"a": []}, run_timeout_ms=60_000)
    run_id = acting.start(store)
    before = acting.agenda(store, run_id)
    forget(engine, run_id, stage)
    assert [row["rule"] for row in store.read("violation")] == ["due_work_is_on_the_agenda"]
    assert store.call("sweep_agenda", p_after_run_id="", p_limit=10) == [
        {"run_id": run_id, "stages": 1}
    ]
    assert acting.agenda(store, run_id).keys() == before.keys()
    assert acting.unbroken(store)
    assert store.call("sweep_agenda", p_after_run_id="", p_limit=10)[0]["stages"] == 0


def test_the_sweep_puts_back_expiry_retry_and_cancellation(store: Store, engine: Engine) -> None:
    run_id = acting.begun(store, {"a": [], "b": [], "c": []}, retry={"attempts": 2})
    held = acting.lease(store, "o1", "o2")
    acting.run(store, *held.values())
    acting.report(store, held["a"], exit_code=1)
    for stage in ("expiry", "retry"):
        forget(engine, run_id, stage)
        assert store.call("sweep_agenda", p_after_run_id="", p_limit=10)[0]["stages"] == 1
    acting.cancel(store, run_id)
    forget(engine, run_id, "cancellation")
    assert store.call("sweep_agenda", p_after_run_id="", p_limit=10)[0]["stages"] == 1
    acting.converge(store, run_id)
    assert acting.unbroken(store)


def test_a_fault_of_an_unknown_run_is_refused(store: Store) -> None:
    with pytest.raises(Unknown):
        store.call("record_fault", p_run_id="ru0", p_stage="frontier", p_error="broken")


def test_the_sweep_leaves_a_whole_agenda_as_it_is(store: Store, engine: Engine) -> None:
    run_id = acting.begun(store, {"a": []})
    acting.run(store, acting.lease(store)["a"])
    before = acting.everything(engine)
    assert store.call("sweep_agenda", p_after_run_id="", p_limit=10) == [
        {"run_id": run_id, "stages": 0}
    ]
    assert store.call("sweep_agenda", p_after_run_id=run_id, p_limit=10) == []
    assert acting.everything(engine) == before


def test_a_fault_backs_off_and_an_operator_releases_it(store: Store, clock) -> None:
    acting.publish(store, {"a": []})
    run_id = acting.start(store)
    fault = {"p_run_id": run_id, "p_stage": "task_admission", "p_error": "broken " * 1_000}
    for count, delay in ((1, 1_000), (2, 2_000), (3, 4_000)):
        assert store.call("record_fault", **fault) == [
            {"run_id": run_id, "fault_count": count, "next_try_at_ms": clock.now_ms + delay}
        ]
    assert acting.page(store, "task_admission_page") == []
    (row,) = store.read("fault_state", run_id=run_id)
    assert len(row["error"].encode()) <= 2_048
    release = {"p_run_id": run_id, "p_stage": "task_admission"}
    assert store.call("release_fault", **release)[0]["outcome"] == "applied"
    assert store.call("release_fault", **release)[0]["outcome"] == "settled"
    assert len(acting.page(store, "task_admission_page")) == 1


def test_the_back_off_of_a_fault_ends_at_five_minutes(store: Store, clock) -> None:
    acting.publish(store, {"a": []})
    run_id = acting.start(store)
    fault = {"p_run_id": run_id, "p_stage": "task_admission", "p_error": "broken"}
    for _ in range(12):
        (row,) = store.call("record_fault", **fault)
    assert row["next_try_at_ms"] == clock.now_ms + 300_000


def test_a_stage_that_gets_through_forgets_its_fault(store: Store) -> None:
    acting.publish(store, {"a": []})
    run_id = acting.start(store)
    store.call("record_fault", p_run_id=run_id, p_stage="task_admission", p_error="broken")
    assert acting.admit(store, run_id)["outcome"] == "applied"
    assert store.read("fault_state", run_id=run_id) == []


def test_work_whose_fault_is_released_stands_where_it_was_due(
    store: Store, clock: FakeClock
) -> None:
    """Found by simulation: it stood at the release, later than a deadline that had passed."""
    run_id = acting.begun(store, {"a": []}, run_timeout_ms=60_000)
    at = acting.agenda(store, run_id)["deadline"]
    clock.set(at + 10)
    fault = {"p_run_id": run_id, "p_stage": "deadline"}
    store.call("record_fault", **fault, p_error="disk on fire")
    clock.advance(5)
    store.call("release_fault", **fault)
    assert acting.agenda(store, run_id)["deadline"] == at
    assert acting.unbroken(store)


PAGES = [
    "due_page", "frontier_page", "task_admission_page", "retry_page", "deadline_page",
    "settle_task_cancellations",
]  # fmt: skip


@pytest.mark.parametrize("limit", [0, 33, None])
@pytest.mark.parametrize("step", PAGES)
def test_a_page_has_one_to_32_candidates(store: Store, step: str, limit: int | None) -> None:
    stage = {"p_stage": "expiry"} if step == "due_page" else {}
    with pytest.raises(Malformed, match=r"1 to 32|limit is missing"):
        store.call(step, **stage, p_after_due_at_ms=-1, p_after_run_id="", p_limit=limit)


@pytest.mark.parametrize("limit", [0, 1025, None])
def test_a_sweep_takes_one_to_1024_runs(store: Store, limit: int | None) -> None:
    with pytest.raises(Malformed, match=r"1 to 1024|limit is missing"):
        store.call("sweep_agenda", p_after_run_id="", p_limit=limit)
