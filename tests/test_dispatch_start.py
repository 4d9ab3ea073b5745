"""The start barrier: who crosses it with which authority, and what runs then (DESIGN §5, §6)."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from qinglong_sql.errors import Malformed
from tests import acting
from tests.acting import LEASE_MS, Engine, Store, codes


@pytest.fixture(autouse=True)
def _nothing_broken(store: Store) -> Iterator[None]:
    yield
    assert acting.unbroken(store)


def test_a_start_crosses_the_barrier_and_tells_the_deadline(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    clock.advance(100)
    (row,) = acting.cross(store, held)
    assert row == {
        "attempt_id": held.attempt_id,
        "outcome": "applied",
        "code": None,
        "deadline_at_ms": None,
        "expires_at_ms": held.row["expires_at_ms"],
    }
    assert acting.attempt(store, held.attempt_id)["status"] == "starting"
    assert acting.step(store, run_id)["status"] == "ready"


def test_a_timeout_becomes_the_attempts_deadline_at_its_start(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": []}, timeout_ms=60_000)
    held = acting.lease(store)["a"]
    assert held.row["timeout_ms"] == 60_000
    clock.advance(100)
    (row,) = acting.cross(store, held)
    assert row["deadline_at_ms"] == clock.now_ms + 60_000
    assert acting.run_row(store, run_id)["deadline_at_ms"] is None


def test_a_start_repeated_answers_as_before(store: Store, engine: Engine) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    first = acting.cross(store, held)
    before = acting.everything(engine)
    assert acting.cross(store, held) == first
    assert acting.everything(engine) == before


def test_a_start_with_another_identity_is_refused(store: Store) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    acting.cross(store, held, identity="pid 7")
    assert codes(acting.cross(store, held, identity="pid 8")) == [("blocked", "QL410")]


def test_a_start_repeated_with_another_token_is_refused(store: Store) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    acting.run(store, held)
    stranger = replace(held, token="guessed")
    assert codes(acting.run(store, stranger)) == [("blocked", "QL410")]
    assert codes(acting.cross(store, stranger)) == [("blocked", "QL410")]
    assert codes(acting.renew(store, stranger)) == [("blocked", "QL410")]


def test_fence_and_token_are_the_authority(store: Store, engine: Engine) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    before = acting.everything(engine)
    assert codes(acting.cross(store, replace(held, fence=2))) == [("blocked", "QL410")]
    assert codes(acting.cross(store, replace(held, token="guessed"))) == [("blocked", "QL410")]
    assert codes(acting.cross(store, replace(held, attempt_id="ru0-1"))) == [("blocked", "QL404")]
    assert acting.everything(engine) == before


def test_an_expired_lease_starts_nothing(store: Store, clock) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    clock.advance(LEASE_MS)
    assert codes(acting.cross(store, held)) == [("blocked", "QL410")]


def test_a_start_under_an_intent_is_refused_and_gives_the_lease_back(
    store: Store, engine: Engine
) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    acting.cancel(store, run_id)
    acting.converge(store, run_id)
    assert "cancellation" not in acting.agenda(store, run_id)
    first = acting.cross(store, held)
    assert codes(first) == [("blocked", "QL410")]
    row = acting.attempt(store, held.attempt_id)
    assert (row["status"], row["lease_status"], row["fence"]) == ("claimed", "released", 2)
    assert acting.events(store, run_id)[-1] == "workflow.task_dispatch_released"
    assert "cancellation" in acting.agenda(store, run_id)
    before = acting.everything(engine)
    assert acting.cross(store, held) == first
    assert acting.everything(engine) == before
    assert acting.converge(store, run_id)["outcome"] == "settled"
    assert acting.cross(store, held) == first


def test_a_batch_is_answered_in_its_order(store: Store) -> None:
    acting.begun(store, {"a": [], "b": [], "c": []})
    held = acting.lease(store, "o1", "o2", "o3")
    rows = acting.cross(store, held["c"], replace(held["a"], fence=9), held["b"], held["c"])
    assert [(row["attempt_id"], row["outcome"], row["code"]) for row in rows] == [
        (held["c"].attempt_id, "applied", None),
        (held["a"].attempt_id, "blocked", "QL410"),
        (held["b"].attempt_id, "applied", None),
        (held["c"].attempt_id, "blocked", "QL400"),
    ]


def test_a_malformed_command_hides_no_other(store: Store) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    good = json.loads(acting.commands(held, identity="pid 7"))[0]
    batch = [{"attempt_id": "x"}, 7, good | {"attempt_id": "y", "identity": "x" * 513}, good]
    rows = store.call("start_attempts", p_commands=json.dumps(batch))
    assert codes(rows) == [("blocked", "QL400")] * 3 + [("applied", None)]


@pytest.mark.parametrize("batch", ["", "{}", "no json", json.dumps([{}] * 129), "null"])
def test_a_batch_that_is_none_raises(store: Store, batch: str) -> None:
    with pytest.raises(Malformed):
        store.call("start_attempts", p_commands=batch)


def test_the_running_acknowledgement_makes_the_step_run(store: Store, engine: Engine) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    first = acting.run(store, held)
    assert codes(first) == [("applied", None)]
    assert acting.attempt(store, held.attempt_id)["status"] == "running"
    step = acting.step(store, run_id)
    assert (step["status"], step["attempt_count"]) == ("running", 1)
    assert acting.events(store, run_id)[-2:] == ["workflow.task_attempt.running", "step.running"]
    before = acting.everything(engine)
    assert store.call("running_attempts", p_commands=acting.commands(held)) == first
    assert acting.everything(engine) == before


def test_running_counts_even_under_an_intent(store: Store) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    acting.cross(store, held)
    acting.cancel(store, run_id)
    rows = store.call("running_attempts", p_commands=acting.commands(held))
    assert codes(rows) == [("applied", None)]
    assert acting.step(store, run_id)["status"] == "running"


def test_running_before_the_start_is_refused(store: Store) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    rows = store.call("running_attempts", p_commands=acting.commands(held))
    assert codes(rows) == [("blocked", "QL410")]


def test_a_start_whose_answer_was_lost_is_refused_once_it_was_declared_stopped(
    store: Store,
) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    assert acting.cross(store, held)[0]["outcome"] == "applied"
    assert acting.cross(store, held)[0]["outcome"] == "applied"
    store.call(
        "declare_stopped",
        p_attempt_id=held.attempt_id,
        p_reason="the host is off",
        p_actor="ann",
        p_follow=None,
    )
    row = acting.cross(store, held)[0]
    assert (row["outcome"], row["code"]) == ("blocked", "QL410")
