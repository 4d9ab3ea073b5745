"""A retry of what a trigger started is in the way of its next occurrence, as that itself was."""

import ast
from typing import Any

import pytest

from qinglong_sql.schedule import run_schedule
from tests import acting, oracle_schedule
from tests.acting import Engine, Store
from tests.scheduling import DAY_MS, NAME, begun, publish, runs, times, trigger
from tests.stores import FakeClock
from tests.test_retry_run import retry


@pytest.fixture(autouse=True)
def nothing_is_violated(store: Store) -> Any:
    yield
    assert store.read("violation") == []


def end(store: Store, run_id: str, status: str = "failed") -> str:
    """Let a run of the task come to its end."""
    acting.register(store)
    acting.admit(store, run_id)
    (held,) = acting.lease(store, "o" + run_id[-8:], run_id=run_id).values()
    acting.run(store, held)
    acting.report(store, held, exit_code=int(status == "failed"))
    acting.advance(store, run_id)
    assert acting.run_row(store, run_id)["status"] == status
    return run_id


def again(store: Store, run_id: str, key: str | None = None) -> str:
    row = retry(store, run_id, key)
    assert row["outcome"] == "created"
    return str(row["run_id"])


def fired(store: Store, clock: FakeClock, now_ms: int) -> str:
    """The run that an occurrence starts."""
    clock.set(now_ms)
    run_schedule(store)
    found = trigger(store)
    assert found["last_outcome"] == "admitted"
    return str(found["last_run_id"])


def became(store: Store, clock: FakeClock, now_ms: int) -> tuple[str, int]:
    """What becomes of an occurrence, and how many runs there are then."""
    clock.set(now_ms)
    run_schedule(store)
    return trigger(store)["last_outcome"], len(runs(store))


def marks(engine: Engine) -> dict[str, tuple[str, int | None]]:
    """{run: (trigger, open since)}, as the trigger knows them."""
    rows = map(ast.literal_eval, acting.everything(engine)["trigger_run"])
    return {run_id: (key, since_ms) for run_id, _, key, since_ms in rows}


@pytest.mark.parametrize("key", [None, "once more"])
@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_while_a_retry_is_open(
    store: Store, engine: Engine, clock: FakeClock, overlap: str, key: str | None
) -> None:
    due_ms = begun(store, overlap=overlap)
    old = end(store, fired(store, clock, due_ms))
    before = trigger(store)
    new = again(store, old, key)
    assert trigger(store) == before
    row = acting.run_row(store, new)
    assert (row["trigger_key"], row["scheduled_at_ms"]) == (None, None)
    assert marks(engine)[new] == ("every-night", clock.now_ms)
    if overlap == "allow":
        assert became(store, clock, due_ms + DAY_MS) == ("admitted", 3)
        return
    (blocked,) = store.read("schedule_blocked", package_key="nightly")
    assert (blocked["waits_for"], blocked["waits_on"]) == ("overlap", new)
    assert blocked["since_ms"] == row["admitted_at_ms"]
    assert became(store, clock, due_ms + DAY_MS) == ("overlap", 2)
    found = trigger(store)
    assert (found["last_run_id"], found["next_fire_at_ms"]) == (old, due_ms + 2 * DAY_MS)
    end(store, new, "succeeded")
    assert store.read("schedule_blocked") == []
    assert became(store, clock, due_ms + 2 * DAY_MS) == ("admitted", 3)
    assert times(store).count(due_ms + 2 * DAY_MS) == 1
    assert marks(engine)[new] == ("every-night", None)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_chain_of_retries_is_known_as_the_oracle_says(
    store: Store, engine: Engine, clock: FakeClock, length: int, by_hand: bool
) -> None:
    due_ms = begun(store, overlap="skip")
    if by_hand:
        run_id = str(store.call("fire_trigger", **NAME, p_run_key="by hand")[0]["run_id"])
    else:
        run_id = fired(store, clock, due_ms)
        due_ms += DAY_MS
    nobody = acting.start(store, "task")
    end(store, nobody)
    again(store, nobody)
    for number in range(length):
        run_id = again(store, end(store, run_id), f"key {number}" if number % 2 else None)
    there = runs(store)
    started = {row["run_id"]: row["trigger_key"] for row in there}
    retry_of = {row["run_id"]: row["retry_of_run_id"] for row in there}
    owners = {one: oracle_schedule.owner(one, retry_of, started) for one in started}
    assert list(owners.values()).count("every-night") == length + 1
    found = {one: key for one, (key, _) in marks(engine).items()}
    assert found == {one: key for one, key in owners.items() if key is not None}
    assert became(store, clock, due_ms) == ("overlap", len(there))
    end(store, run_id, "succeeded")
    assert became(store, clock, due_ms + DAY_MS) == ("admitted", len(there) + 1)


def test_a_retry_of_what_a_decision_has_found_ended_is_known_too(
    store: Store, clock: FakeClock
) -> None:
    due_ms = begun(store, overlap="skip")
    old = end(store, fired(store, clock, due_ms))
    end(store, fired(store, clock, due_ms + DAY_MS))
    again(store, old)
    assert became(store, clock, due_ms + 2 * DAY_MS) == ("overlap", 3)


def test_a_retry_that_is_there_is_known_once(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    old = end(store, fired(store, clock, begun(store, overlap="skip")))
    new = again(store, old)
    before = acting.everything(engine)
    assert retry(store, old)["outcome"] == "existing"
    assert acting.everything(engine) == before
    other = acting.start(store, "task", key="of another")
    assert retry(store, old, "of another")["outcome"] == "conflict"
    assert marks(engine).keys() == {old, new} and other not in marks(engine)


def test_a_retry_of_what_no_trigger_started_is_nobodys(store: Store, engine: Engine) -> None:
    publish(store, overlap="skip")
    old = acting.start(store, "task")
    again(store, end(store, again(store, end(store, old))))
    assert marks(engine) == {}


def test_a_trigger_that_is_gone_is_in_no_retrys_way(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    old = end(store, fired(store, clock, begun(store, overlap="skip")))
    publish(store, {})
    new = again(store, old)
    assert marks(engine)[new][0] == "every-night"
    assert store.read("schedule_blocked") == []
