"""Cancellation: an intent first, convergence after it, by two roads (DOMAIN §3.9, DESIGN §5)."""

from collections.abc import Iterator

import pytest

from qinglong_sql.errors import Malformed, Unknown
from tests import acting
from tests.acting import Engine, Held, Store


@pytest.fixture(autouse=True)
def _nothing_broken(store: Store) -> Iterator[None]:
    yield
    assert acting.unbroken(store)


# The intent


def test_a_request_becomes_an_intent_once(store: Store, engine: Engine, clock) -> None:
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    first = acting.cancel(store, run_id)
    assert first == {
        "run_id": run_id,
        "outcome": "accepted",
        "status": "running",
        "cancel_reason": "user",
        "cancel_requested_at_ms": clock.now_ms,
    }
    assert acting.events(store, run_id)[-1] == "run.cancel_requested"
    assert acting.agenda(store, run_id) == {"cancellation": clock.now_ms}
    clock.advance(5)
    before = acting.everything(engine)
    assert acting.cancel(store, run_id) == first
    assert acting.everything(engine) == before


def test_the_first_intent_wins(store: Store, engine: Engine) -> None:
    run_id = acting.begun(store, {"a": []})
    acting.cancel(store, run_id)
    before = acting.everything(engine)
    row = acting.cancel(store, run_id, reason="policy", actor="bob")
    assert (row["outcome"], row["cancel_reason"]) == ("already_requested", "user")
    assert acting.everything(engine) == before


def test_a_run_that_has_ended_takes_no_intent(store: Store, engine: Engine) -> None:
    run_id = acting.begun(store, {"a": []})
    acting.finish(store, run_id)
    acting.advance(store, run_id)
    before = acting.everything(engine)
    row = acting.cancel(store, run_id)
    assert (row["outcome"], row["status"], row["cancel_reason"]) == (
        "already_terminal", "succeeded", None,
    )  # fmt: skip
    assert acting.everything(engine) == before


def test_a_request_repeated_after_the_end_is_accepted_as_before(store: Store) -> None:
    run_id = acting.begun(store, {"a": []})
    acting.cancel(store, run_id)
    acting.converge(store, run_id)
    row = acting.cancel(store, run_id)
    assert (row["outcome"], row["status"]) == ("accepted", "cancelled")


def test_a_request_needs_a_run_and_a_known_reason(store: Store) -> None:
    run_id = acting.begun(store, {"a": []})
    with pytest.raises(Unknown):
        acting.cancel(store, "ru0")
    with pytest.raises(Malformed):
        acting.cancel(store, run_id, reason="whim")


def test_a_workflows_timeout_is_an_intent(store: Store, engine: Engine, clock) -> None:
    run_id = acting.begun(store, {"a": []}, run_timeout_ms=5_000)
    assert acting.agenda(store, run_id)["deadline"] == clock.now_ms + 5_000
    clock.advance(4_999)
    assert acting.page(store, "deadline_page") == []
    assert store.call("deadline_run", p_run_id=run_id)[0]["outcome"] == "settled"
    clock.advance(1)
    (row,) = acting.page(store, "deadline_page")
    assert (row["run_id"], row["outcome"], row["effects"]) == (run_id, "applied", 1)
    assert acting.run_row(store, run_id)["cancel_reason"] == "timeout"
    assert set(acting.agenda(store, run_id)) == {"cancellation"}
    before = acting.everything(engine)
    assert acting.page(store, "deadline_page") == []
    assert store.call("deadline_run", p_run_id=run_id)[0]["outcome"] == "settled"
    assert acting.everything(engine) == before


def test_a_request_outlives_the_timeout_that_comes_later(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": []}, run_timeout_ms=5_000)
    acting.cancel(store, run_id)
    clock.advance(5_000)
    assert store.call("deadline_run", p_run_id=run_id)[0]["outcome"] == "settled"
    acting.converge(store, run_id)
    assert acting.ended(store, run_id) == ("cancelled", "workflow_cancelled")


# Convergence, one run a transaction


def test_what_nobody_holds_ends_and_the_run_last(store: Store, engine: Engine) -> None:
    run_id = acting.begun(store, {"a": [], "b": [], "c": ["a"]})
    acting.cancel(store, run_id)
    version = acting.run_row(store, run_id)["version"]
    first = acting.converge(store, run_id)
    assert first == {
        "run_id": run_id, "outcome": "settled", "settled_attempts": 2, "blocked_count": 0,
    }  # fmt: skip
    assert acting.events(store, run_id, after=version) == [
        "workflow.task_attempt.cancelled",
        "workflow.task_attempt.cancelled",
        "step.cancelled",
        "step.cancelled",
        "step.cancelled",
        "workflow.cancelled",
    ]
    assert acting.ended(store, run_id) == ("cancelled", "workflow_cancelled")
    assert acting.agenda(store, run_id) == {}
    before = acting.everything(engine)
    assert acting.converge(store, run_id) == first | {"settled_attempts": 0}
    assert acting.everything(engine) == before


def test_the_reason_decides_how_each_ends(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": [], "b": ["a"]}, run_timeout_ms=5_000)
    clock.advance(5_000)
    store.call("deadline_run", p_run_id=run_id)
    acting.converge(store, run_id)
    assert acting.statuses(store, run_id) == {"a": "timed_out", "b": "cancelled"}
    assert acting.step(store, run_id, "a")["result_code"] == "workflow_timed_out"
    assert acting.attempt(store, f"{run_id}-1")["result_code"] == "execution_timed_out"
    assert acting.ended(store, run_id) == ("timed_out", "workflow_timed_out")


def test_a_waiting_retry_ends_at_once(store: Store) -> None:
    run_id = acting.begun(store, {"a": []}, retry={"attempts": 2})
    acting.finish(store, run_id, a=1)
    acting.cancel(store, run_id)
    assert acting.converge(store, run_id)["outcome"] == "settled"
    assert acting.statuses(store, run_id) == {"a": "cancelled"}


def test_cancel_beats_all_succeeded(store: Store) -> None:
    run_id = acting.begun(store, {"a": []})
    acting.finish(store, run_id)
    acting.cancel(store, run_id)
    assert acting.converge(store, run_id)["outcome"] == "settled"
    assert acting.statuses(store, run_id) == {"a": "succeeded"}
    assert acting.ended(store, run_id)[0] == "cancelled"


@pytest.mark.parametrize("how_far", ["leased", "starting", "running"])
def test_what_is_held_blocks_and_comes_back_by_the_next_effect(
    store: Store, engine: Engine, how_far: str
) -> None:
    run_id = acting.begun(store, {"a": [], "b": []})
    held = acting.lease(store)["a"]
    if how_far != "leased":
        (acting.run if how_far == "running" else acting.cross)(store, held)
    acting.cancel(store, run_id)
    row = acting.converge(store, run_id)
    assert (row["outcome"], row["settled_attempts"], row["blocked_count"]) == ("blocked", 1, 1)
    assert acting.statuses(store, run_id)["b"] == "cancelled"
    assert acting.run_row(store, run_id)["status"] == "running"
    assert "cancellation" not in acting.agenda(store, run_id)
    before = acting.everything(engine)
    assert acting.converge(store, run_id)["outcome"] == "blocked"
    assert acting.everything(engine) == before
    end = "not_started" if how_far == "leased" else "stop"
    assert acting.report(store, held, how=end, exit_code=None)[0]["outcome"] == "applied"
    assert "cancellation" in acting.agenda(store, run_id)
    assert acting.converge(store, run_id)["outcome"] == "settled"
    assert acting.statuses(store, run_id)["a"] == "cancelled"


def test_an_unknown_run_is_not_mistaken_for_a_held_one(store: Store) -> None:
    with pytest.raises(Unknown):
        acting.converge(store, "ru0")


def test_without_an_intent_nothing_converges(store: Store, engine: Engine) -> None:
    run_id = acting.begun(store, {"a": []})
    before = acting.everything(engine)
    row = acting.converge(store, run_id)
    assert (row["settled_attempts"], row["blocked_count"]) == (0, 0)
    assert acting.everything(engine) == before


# The other road: task runs that never started, as a set


def task_runs(store: Store, count: int) -> list[str]:
    acting.publish(store)
    runs = [acting.start(store, kind="task", key=f"k{number}") for number in range(count)]
    for run_id in runs:
        acting.admit(store, run_id)
    return runs


def test_task_runs_that_never_started_settle_as_a_set(store: Store, engine: Engine, clock) -> None:
    runs = task_runs(store, 3)
    for run_id in runs:
        acting.cancel(store, run_id)
        clock.advance(1)
    rows = acting.page(store, "settle_task_cancellations")
    assert [(row["run_id"], row["outcome"], row["effects"]) for row in rows] == [
        (run_id, "settled", 3) for run_id in runs
    ]
    assert {acting.ended(store, run_id)[0] for run_id in runs} == {"cancelled"}
    before = acting.everything(engine)
    assert acting.page(store, "settle_task_cancellations") == []
    assert acting.everything(engine) == before


def test_both_roads_lead_to_the_same_end(store: Store) -> None:
    one, other = task_runs(store, 2)
    acting.cancel(store, one)
    acting.page(store, "settle_task_cancellations")
    acting.cancel(store, other)
    acting.converge(store, other)
    assert acting.events(store, one) == acting.events(store, other)
    assert acting.ended(store, one) == acting.ended(store, other)


def test_the_set_leaves_what_is_leased_and_all_workflows(store: Store) -> None:
    first, second = task_runs(store, 2)
    acting.register(store)
    (row,) = acting.offer_rows(store, ["o1"])
    held = Held(row["attempt_id"], row["fence"], acting.token("o1"), row)
    acting.publish(store, {"a": []})
    flow = acting.start(store)
    for run_id in (first, second, flow):
        acting.cancel(store, run_id)
    leased, free = (first, second) if row["run_id"] == first else (second, first)
    rows = acting.page(store, "settle_task_cancellations")
    assert [row["run_id"] for row in rows] == [free]
    assert "cancellation" in acting.agenda(store, leased)
    assert "cancellation" in acting.agenda(store, flow)
    assert acting.converge(store, leased)["outcome"] == "blocked"
    acting.report(store, held, how="not_started", exit_code=None)
    assert [row["run_id"] for row in acting.page(store, "settle_task_cancellations")] == [leased]
