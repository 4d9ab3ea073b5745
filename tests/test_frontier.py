"""Frontier: what opens, what never can, and how a run ends (DOMAIN §3.3)."""

import pytest

from qinglong_sql.errors import Malformed, Unknown
from tests import acting
from tests.acting import Engine, Store

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


@pytest.fixture(autouse=True)
def _nothing_broken(store):
    yield
    assert acting.unbroken(store)


def test_roots_are_ready_and_all_others_pending(store: Store) -> None:
    acting.publish(store, DIAMOND)
    run_id = acting.start(store)
    assert acting.statuses(store, run_id) == {
        "a": "ready", "b": "pending", "c": "pending", "d": "pending",
    }  # fmt: skip
    assert set(acting.agenda(store, run_id)) == {"task_admission"}


def test_a_step_opens_when_all_its_needs_have_succeeded(store: Store) -> None:
    run_id = acting.begun(store, DIAMOND)
    acting.finish(store, run_id)
    acting.advance(store, run_id)
    assert acting.statuses(store, run_id) == {
        "a": "succeeded", "b": "ready", "c": "ready", "d": "pending",
    }  # fmt: skip


def test_a_step_waits_while_one_of_its_needs_still_runs(store: Store) -> None:
    run_id = acting.begun(store, DIAMOND)
    acting.finish(store, run_id)
    acting.advance(store, run_id)
    held = acting.lease(store, "b", "c")
    acting.run(store, *held.values())
    acting.report(store, held["b"])
    assert acting.advance(store, run_id)["outcome"] == "settled"
    assert acting.step(store, run_id, "d")["status"] == "pending"


def test_a_run_succeeds_when_every_step_has(store: Store) -> None:
    run_id = acting.begun(store, DIAMOND)
    for _ in range(3):
        acting.finish(store, run_id)
        acting.advance(store, run_id)
    assert acting.ended(store, run_id) == ("succeeded", None)
    assert acting.agenda(store, run_id) == {}


def test_a_failure_skips_all_descendants_in_one_pass_and_ends_the_run(store: Store) -> None:
    run_id = acting.begun(store, {"a": [], "b": ["a"], "c": ["b"], "z": []})
    acting.finish(store, run_id, a=1)
    row = acting.advance(store, run_id)
    assert (row["outcome"], row["effects"]) == ("applied", 3)
    assert acting.statuses(store, run_id) == {
        "a": "failed", "b": "skipped", "c": "skipped", "z": "succeeded",
    }  # fmt: skip
    assert acting.step(store, run_id, "c")["result_code"] == "dependency_not_succeeded"
    assert acting.ended(store, run_id) == ("failed", "workflow_step_failed")


def test_siblings_of_a_failed_step_go_on(store: Store) -> None:
    run_id = acting.begun(store, {"a": [], "b": ["a"], "y": [], "z": ["y"]})
    acting.finish(store, run_id, a=1)
    acting.advance(store, run_id)
    assert acting.statuses(store, run_id) == {
        "a": "failed", "b": "skipped", "y": "succeeded", "z": "ready",
    }  # fmt: skip
    assert acting.ended(store, run_id) == ("running", None)


def test_a_skipped_step_never_decides(store: Store) -> None:
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    held = acting.lease(store)
    acting.run(store, held["a"])
    acting.report(store, held["a"], how="deadline", exit_code=None)
    acting.advance(store, run_id)
    assert acting.statuses(store, run_id) == {"a": "timed_out", "b": "skipped"}
    assert acting.ended(store, run_id) == ("timed_out", "workflow_step_timed_out")


def test_failed_outweighs_timed_out(store: Store) -> None:
    run_id = acting.begun(store, {"a": [], "b": []})
    held = acting.lease(store, "one", "two")
    acting.run(store, *held.values())
    acting.report(store, held["a"], how="deadline", exit_code=None)
    acting.report(store, held["b"], exit_code=3)
    acting.advance(store, run_id)
    assert acting.ended(store, run_id) == ("failed", "workflow_step_failed")


def test_a_run_with_an_intent_is_left_to_cancellation(store: Store) -> None:
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    held = acting.lease(store)
    acting.run(store, held["a"])
    acting.report(store, held["a"])
    acting.cancel(store, run_id)
    row = store.call("advance_frontier", p_run_id=run_id)[0]
    assert (row["outcome"], row["effects"]) == ("settled", 0)
    assert acting.step(store, run_id, "b")["status"] == "pending"


def test_a_second_call_finds_nothing_and_adds_no_row(store: Store, engine: Engine) -> None:
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    acting.finish(store, run_id)
    assert store.call("advance_frontier", p_run_id=run_id)[0]["outcome"] == "applied"
    before = acting.everything(engine)
    assert store.call("advance_frontier", p_run_id=run_id)[0] == {
        "run_id": run_id, "outcome": "settled", "effects": 0,
    }  # fmt: skip
    assert acting.page(store, "frontier_page") == []
    assert acting.everything(engine) == before


def test_an_unknown_run_is_not_mistaken_for_a_held_one(store: Store) -> None:
    with pytest.raises(Unknown):
        store.call("advance_frontier", p_run_id="ru0")


def test_a_page_takes_due_runs_in_key_order_and_clears_them(store: Store, clock) -> None:
    acting.publish(store, {"a": [], "b": ["a"]})
    runs = [acting.start(store, key=f"k{number}") for number in range(3)]
    for run_id in runs:
        acting.admit(store, run_id)
        acting.finish(store, run_id)
        clock.advance(1)
    first = acting.page(store, "frontier_page", limit=2)
    assert [row["run_id"] for row in first] == runs[:2]
    last = (first[-1]["due_at_ms"], first[-1]["run_id"])
    rest = acting.page(store, "frontier_page", limit=2, after=last)
    assert [(row["run_id"], row["outcome"], row["effects"]) for row in rest] == [
        (runs[2], "applied", 1)
    ]
    assert all("frontier" not in acting.agenda(store, run_id) for run_id in runs)
    assert {acting.step(store, run_id, "b")["status"] for run_id in runs} == {"ready"}


def test_a_page_is_bounded(store: Store) -> None:
    with pytest.raises(Malformed):
        acting.page(store, "frontier_page", limit=33)
