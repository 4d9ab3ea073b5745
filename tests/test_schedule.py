"""Triggers: an operator's words, and what becomes of an occurrence (DOMAIN §3.10, issue 5)."""

from typing import Any

import pytest

from qinglong_sql.cron_fire import next_fire
from qinglong_sql.errors import Malformed, Unknown
from qinglong_sql.limits import CRON_GRACE_MS
from qinglong_sql.schedule import run_schedule
from qinglong_sql.stage import Tally
from tests import acting
from tests.acting import Engine, Store
from tests.scheduling import DAY_MS, NAME, NIGHTLY, begun, publish, runs, times, trigger
from tests.stores import FakeClock


def end(store: Store, run_id: str) -> None:
    """Let a run of a trigger come to its end."""
    acting.admit(store, run_id)
    (held,) = acting.lease(store, "o" + run_id[-8:], run_id=run_id).values()
    acting.run(store, held)
    acting.report(store, held)
    acting.advance(store, run_id)
    assert store.read("run_state", run_id=run_id)[0]["status"] == "succeeded"


@pytest.fixture(autouse=True)
def nothing_is_violated(store: Store) -> Any:
    yield
    assert store.read("violation") == []


# --- an operator's words


def test_a_trigger_is_paused_and_resumed(store: Store, engine: Engine) -> None:
    publish(store)
    for step, state in (("pause_trigger", "paused"), ("resume_trigger", "active")):
        assert store.call(step, **NAME) == [{"trigger_key": "every-night", "state": state}]
        assert trigger(store)["state"] == state
        before = acting.everything(engine)
        assert store.call(step, **NAME) == [{"trigger_key": "every-night", "state": state}]
        assert acting.everything(engine) == before


def test_a_withdrawn_trigger_is_unknown(store: Store) -> None:
    publish(store)
    store.call("withdraw_package", p_package_key="nightly")
    for name in (NAME, NAME | {"p_trigger_key": "no-such"}):
        for step, more in (("resume_trigger", {}), ("fire_trigger", {"p_run_key": "k"})):
            with pytest.raises(Unknown):
                store.call(step, **name, **more)


def test_firing_by_hand_is_once_a_key_and_moves_no_cursor(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    due_ms = begun(store, overlap="skip")
    first = store.call("fire_trigger", **NAME, p_run_key="by hand")[0]
    assert first["outcome"] == "created"
    before = acting.everything(engine)
    again = store.call("fire_trigger", **NAME, p_run_key="by hand")[0]
    assert again == first | {"outcome": "existing"} and acting.everything(engine) == before
    store.call("pause_trigger", **NAME)
    second = store.call("fire_trigger", **NAME, p_run_key="once more")[0]
    assert second["outcome"] == "created" and second["run_id"] != first["run_id"]
    assert trigger(store)["next_fire_at_ms"] == due_ms
    assert {(row["trigger_key"], row["scheduled_at_ms"]) for row in runs(store)} == {
        ("every-night", None)
    }


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_a_run_key_has_bounds(store: Store, key: str) -> None:
    publish(store)
    with pytest.raises(Malformed):
        store.call("fire_trigger", **NAME, p_run_key=key)


@pytest.mark.parametrize("kind", ["task", "workflow"])
def test_no_key_of_a_run_is_in_the_way_of_an_occurrence(
    store: Store, clock: FakeClock, kind: str
) -> None:
    due_ms = begun(store, kind=kind, target="work" if kind == "task" else "flow")
    acting.start(store, kind, key=str(due_ms))
    acting.start(store, kind, key=f"every-night {due_ms}")
    clock.set(due_ms)
    assert run_schedule(store).effects == 1
    assert len(runs(store)) == 3


# --- the decision


def test_a_new_trigger_waits_for_its_first_time(store: Store, clock: FakeClock) -> None:
    due_ms = begun(store)
    assert due_ms == next_fire(NIGHTLY["cron"], NIGHTLY["tz"], clock.now_ms)
    clock.set(due_ms - 1)
    assert run_schedule(store) == Tally()
    assert runs(store) == []


def test_a_due_trigger_fires_once_and_waits_for_the_next_day(
    store: Store, clock: FakeClock
) -> None:
    due_ms = begun(store)
    clock.set(due_ms)
    tally = run_schedule(store)
    assert (tally.scanned, tally.applied, tally.effects, tally.lag_ms) == (1, 1, 1, 0)
    assert run_schedule(store) == Tally()
    (run,) = runs(store)
    assert (run["trigger_key"], run["scheduled_at_ms"], run["kind"], run["target_key"]) == (
        "every-night", due_ms, "task", "work",
    )  # fmt: skip
    found = trigger(store)
    assert found["next_fire_at_ms"] == due_ms + DAY_MS
    assert (found["last_outcome"], found["last_run_id"], found["last_scheduled_at_ms"]) == (
        "admitted", run["run_id"], due_ms,
    )  # fmt: skip


def test_a_trigger_starts_a_workflow_too(store: Store, clock: FakeClock) -> None:
    clock.set(begun(store, kind="workflow", target="flow"))
    run_schedule(store)
    (run,) = runs(store)
    assert (run["kind"], run["target_key"], run["status"]) == ("workflow", "flow", "running")


@pytest.mark.parametrize("late_ms", [0, 1, CRON_GRACE_MS])
def test_up_to_its_grace_an_occurrence_is_not_late(
    store: Store, clock: FakeClock, late_ms: int
) -> None:
    due_ms = begun(store, misfire="skip")
    clock.set(due_ms + late_ms)
    assert run_schedule(store).effects == 1
    assert times(store) == [due_ms]


@pytest.mark.parametrize("days", [0, 5])
@pytest.mark.parametrize("misfire", ["skip", "fire_once"])
def test_what_was_missed_is_one_run_or_none(
    store: Store, clock: FakeClock, misfire: str, days: int
) -> None:
    due_ms = begun(store, misfire=misfire)
    clock.set(due_ms + days * DAY_MS + CRON_GRACE_MS + 1)
    tally = run_schedule(store)
    assert (tally.applied, tally.lag_ms) == (1, days * DAY_MS + CRON_GRACE_MS + 1)
    assert times(store) == ([due_ms] if misfire == "fire_once" else [])
    found = trigger(store)
    assert found["next_fire_at_ms"] == due_ms + (days + 1) * DAY_MS
    assert found["last_outcome"] == ("admitted" if misfire == "fire_once" else "misfire")
    assert run_schedule(store) == Tally()


def test_a_trigger_that_nobody_looked_at_since_it_was_published_is_late_too(
    store: Store, clock: FakeClock
) -> None:
    publish(store)
    first = next_fire(NIGHTLY["cron"], NIGHTLY["tz"], clock.now_ms)
    clock.advance(3 * DAY_MS)
    run_schedule(store)
    assert times(store) == [first]


@pytest.mark.parametrize("overlap", ["skip", "allow"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_while_an_earlier_run_is_open(
    store: Store, clock: FakeClock, overlap: str, by_hand: bool
) -> None:
    due_ms = begun(store, overlap=overlap)
    if by_hand:
        store.call("fire_trigger", **NAME, p_run_key="by hand")
    else:
        clock.set(due_ms)
        run_schedule(store)
        due_ms += DAY_MS
    (open_run,) = runs(store)
    clock.set(due_ms)
    run_schedule(store)
    found = trigger(store)
    if overlap == "allow":
        assert found["last_outcome"] == "admitted" and len(runs(store)) == 2
        return
    assert found["last_outcome"] == "overlap" and len(runs(store)) == 1
    (blocked,) = store.read("schedule_blocked", package_key="nightly")
    assert (blocked["waits_for"], blocked["waits_on"]) == ("overlap", open_run["run_id"])
    acting.register(store)
    end(store, open_run["run_id"])
    assert store.read("schedule_blocked") == []
    clock.set(due_ms + DAY_MS)
    run_schedule(store)
    assert trigger(store)["last_outcome"] == "admitted" and len(runs(store)) == 2
