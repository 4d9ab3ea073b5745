"""Many triggers at once, and one that raises: it waits for itself and hides nobody."""

from typing import Any

import pytest

from qinglong_sql import schedule
from qinglong_sql.schedule import run_schedule
from qinglong_sql.stage import Tally
from tests.acting import Store
from tests.scheduling import NAME, NIGHTLY, begun, claim, commit, many, publish, runs, trigger
from tests.stores import FakeClock


@pytest.fixture(autouse=True)
def nothing_is_violated(store: Store) -> Any:
    yield
    assert store.read("violation") == []


def test_a_thousand_triggers_of_one_minute_fire_within_bounded_cycles(
    store: Store, clock: FakeClock
) -> None:
    publish(store, many(1_000))
    cycles = 0
    while run_schedule(store).applied:
        cycles += 1
    assert cycles == 8  # 32 a page, 4 pages a cycle
    due_ms = trigger(store, "t0000")["next_fire_at_ms"]
    clock.set(due_ms)
    fired = []
    for _ in range(8):
        tally = run_schedule(store)
        fired.append(tally.effects)
        clock.advance(250)
    assert fired == [128] * 7 + [104]
    assert run_schedule(store) == Tally()
    assert {row["scheduled_at_ms"] for row in runs(store)} == {due_ms}
    assert len({row["trigger_key"] for row in runs(store)}) == 1_000


@pytest.mark.parametrize("poison", [{"cron": "no cron at all"}, {"tz": "Mars/Olympus"}])
def test_a_poisoned_trigger_hides_nobody(
    store: Store, clock: FakeClock, poison: dict[str, str]
) -> None:
    publish(store, {"a-poison": NIGHTLY | poison} | many(40))
    tally = run_schedule(store)
    assert (tally.applied, tally.faulted) == (40, 1)
    assert run_schedule(store) == Tally()  # it has a back-off of its own
    found = trigger(store, "a-poison")
    assert next(iter(poison.values())) in found["fault_error"] and found["fault_count"] == 1
    (blocked,) = store.read("schedule_blocked", package_key="nightly")
    assert (blocked["trigger_key"], blocked["waits_for"]) == ("a-poison", "fault")
    assert blocked["due_at_ms"] == found["due_at_ms"] == clock.now_ms + 1_000
    for wait_ms in (1_000, 2_000, 4_000):
        clock.advance(wait_ms)
        assert run_schedule(store).faulted == 1
        assert run_schedule(store) == Tally()
    assert trigger(store, "a-poison")["fault_count"] == 4
    clock.set(trigger(store, "t0000")["next_fire_at_ms"])
    tally = run_schedule(store)
    assert (tally.effects, tally.faulted) == (40, 1)


def test_a_fault_is_over_when_it_is_mended(store: Store, clock: FakeClock) -> None:
    publish(store, cron="no cron at all")
    run_schedule(store)
    assert trigger(store)["fault_count"] == 1
    store.call("resume_trigger", **NAME)  # try at once
    assert run_schedule(store).faulted == 1
    publish(store)
    assert trigger(store)["fault_error"] is None
    assert run_schedule(store).applied == 1


def test_a_commit_that_raises_is_a_fault_too(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    due_ms = begun(store)
    monkeypatch.setattr(schedule, "_times", lambda row: (row["next_fire_at_ms"], 1))
    clock.set(due_ms)
    assert run_schedule(store).faulted == 1
    assert "later than what was observed" in trigger(store)["fault_error"]
    monkeypatch.undo()
    clock.advance(1_000)
    assert run_schedule(store).effects == 1
    assert trigger(store)["fault_error"] is None


def test_a_fault_of_what_has_moved_is_not_kept(store: Store, clock: FakeClock) -> None:
    publish(store)
    (row,) = claim(store)
    assert commit(store, row)["outcome"] == "applied"
    late = store.call(
        "record_trigger_fault", **NAME, p_state_version=row["state_version"], p_error="late"
    )
    assert late == [] and trigger(store)["fault_error"] is None
