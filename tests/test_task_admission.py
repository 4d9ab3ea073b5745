"""Task admission: one attempt for each ready step and epoch (DOMAIN §3.4)."""

from collections.abc import Iterator

import pytest

from tests import acting
from tests.acting import Engine, Store


@pytest.fixture(autouse=True)
def _nothing_broken(store: Store) -> Iterator[None]:
    yield
    assert acting.unbroken(store)


def test_a_ready_step_gets_one_attempt_and_stays_ready(store: Store) -> None:
    acting.publish(store, {"a": [], "b": ["a"]})
    run_id = acting.start(store)
    row = acting.admit(store, run_id)
    assert (row["outcome"], row["effects"]) == ("applied", 1)
    (one,) = store.read("attempt_state", run_id=run_id)
    step = acting.step(store, run_id)
    assert one["attempt_id"] == f"{run_id}-1"
    assert (one["step_key"], one["status"], one["epoch"]) == ("a", "claimed", step["version"])
    assert (step["status"], step["attempt_count"]) == ("ready", 0)
    assert "task_admission" not in acting.agenda(store, run_id)


def test_a_second_call_admits_nothing_and_adds_no_row(store: Store, engine: Engine) -> None:
    run_id = acting.begun(store, {"a": [], "b": []})
    before = acting.everything(engine)
    assert acting.admit(store, run_id) == {"run_id": run_id, "outcome": "settled", "effects": 0}
    assert acting.page(store, "task_admission_page") == []
    assert acting.everything(engine) == before


def test_numbers_follow_the_order_of_the_step_keys(store: Store) -> None:
    run_id = acting.begun(store, {"c": [], "B": [], "a": []})
    rows = store.read("attempt_state", run_id=run_id, order="number")
    assert [(row["number"], row["step_key"]) for row in rows] == [(1, "B"), (2, "a"), (3, "c")]
    assert acting.run_row(store, run_id)["attempt_count"] == 3


def test_a_new_epoch_gets_the_next_number(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": []}, retry={"attempts": 2})
    acting.finish(store, run_id, a=1)
    clock.advance(5_000)
    store.call("retry_run", p_run_id=run_id)
    acting.admit(store, run_id)
    rows = store.read("attempt_state", run_id=run_id, order="number")
    assert [(row["number"], row["status"]) for row in rows] == [(1, "failed"), (2, "claimed")]
    assert rows[1]["epoch"] == acting.step(store, run_id)["version"]


def test_nothing_is_admitted_under_an_intent(store: Store) -> None:
    acting.publish(store, {"a": []})
    run_id = acting.start(store)
    acting.cancel(store, run_id)
    assert acting.admit(store, run_id)["outcome"] == "settled"
    assert store.read("attempt_state", run_id=run_id) == []


def test_a_task_run_has_the_step_main(store: Store) -> None:
    acting.publish(store)
    run_id = acting.start(store, kind="task")
    acting.admit(store, run_id)
    assert [row["step_key"] for row in store.read("attempt_state", run_id=run_id)] == ["main"]


def test_a_call_admits_at_most_512_and_the_rest_keeps_its_row(store: Store) -> None:
    acting.publish(store, {f"s{number:03}": [] for number in range(128)})
    runs = [acting.start(store, key=f"k{number}") for number in range(6)]
    first = acting.page(store, "task_admission_page")
    assert sum(row["effects"] for row in first) <= 512
    assert {row["outcome"] for row in first} == {"applied"}
    waiting = [run_id for run_id in runs if "task_admission" in acting.agenda(store, run_id)]
    assert len(waiting) == len(runs) - len(first) > 0
    acting.page(store, "task_admission_page")
    assert [acting.run_row(store, run_id)["attempt_count"] for run_id in runs] == [128] * 6
