"""Triggers: what becomes of an occurrence, exactly once, whatever dies (DOMAIN §3.10, issue 5)."""

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_sql import schedule
from qinglong_sql.cron_fire import next_fire
from qinglong_sql.errors import Malformed, Unknown
from qinglong_sql.limits import CRON_GRACE_MS, PAGE_SIZE, SCHEDULE_CLAIM_MS
from qinglong_sql.schedule import run_schedule
from qinglong_sql.stage import Tally
from tests import acting
from tests.acting import Engine, Row, Store
from tests.stores import FakeClock, store_on

DAY_MS = 86_400_000
MINUTE_MS = 60_000
NIGHTLY = {
    "cron": "30 2 * * *",
    "kind": "task",
    "misfire": "fire_once",
    "overlap": "allow",
    "target": "work",
    "tz": "Europe/Berlin",
}
NAME = {"p_package_key": "nightly", "p_trigger_key": "every-night"}
Change = Callable[[Store], object]


def publish(store: Store, triggers: dict[str, Any] | None = None, **changes: str) -> Row:
    """Publish the trigger `every-night` with changes, or others."""
    model = acting.model({"work": acting.task()}, {"flow": acting.workflow({"a": []})})
    found = {"every-night": NIGHTLY | changes} if triggers is None else triggers
    return acting.publish_model(store, model | {"triggers": found})


def trigger(store: Store, key: str = "every-night") -> Row:
    return store.read("trigger_state", package_key="nightly", trigger_key=key)[0]


def begun(store: Store, **changes: str) -> int:
    """Publish the trigger and set its cursor; when it is due."""
    publish(store, **changes)
    assert run_schedule(store).applied == 1
    due_ms = trigger(store)["next_fire_at_ms"]
    assert isinstance(due_ms, int)
    return due_ms


def runs(store: Store) -> list[Row]:
    return store.read("run_state", order="scheduled_at_ms")


def times(store: Store) -> list[int]:
    """The scheduled times of all runs."""
    return [row["scheduled_at_ms"] for row in runs(store)]


def claim(store: Store, token: str = "t1", owner: str = "me", limit: int = PAGE_SIZE) -> list[Row]:
    return store.call("claim_schedule", p_owner=owner, p_token=token, p_limit=limit)


def commit(store: Store, row: Row, token: str = "t1", owner: str = "me", **changes: Any) -> Row:
    """Commit a claim with the times that `next_fire` gives, and changes."""
    due_ms, next_ms = schedule._times(row)
    given = {
        "p_package_key": row["package_key"], "p_trigger_key": row["trigger_key"],
        "p_owner": owner, "p_token": token, "p_claim_version": row["claim_version"],
        "p_state_version": row["state_version"], "p_cursor_ms": row["next_fire_at_ms"],
        "p_due_at_ms": due_ms, "p_observed_at_ms": row["observed_at_ms"],
        "p_next_at_ms": next_ms, "p_grace_ms": CRON_GRACE_MS,
    }  # fmt: skip
    return store.call("commit_schedule", **given | changes)[0]


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


# --- nothing twice, nothing lost


def test_a_commit_is_replayed(store: Store, engine: Engine, clock: FakeClock) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    done = commit(store, row)
    assert (done["outcome"], done["disposition"]) == ("applied", "admit")
    before = acting.everything(engine)
    again = commit(store, row)
    assert (again["outcome"], again["run_id"]) == ("settled", done["run_id"])
    assert acting.everything(engine) == before


@pytest.mark.parametrize("misfire", ["skip", "fire_once"])
def test_a_scheduler_that_dies_between_claim_and_commit_loses_nothing(
    store: Store, engine: Engine, clock: FakeClock, misfire: str
) -> None:
    """Its claim runs out; the next one takes over, and who was in time has not made it late."""
    due_ms = begun(store, misfire=misfire)
    clock.set(due_ms + CRON_GRACE_MS)
    (dead,) = claim(store)
    if engine.kind == "postgres":
        assert claim(store, "t2") == []
        clock.set(due_ms + CRON_GRACE_MS + SCHEDULE_CLAIM_MS - 1)
        assert claim(store, "t2") == []
        clock.advance(1)
    assert run_schedule(store).effects == 1
    assert commit(store, dead)["outcome"] in {"contended", "settled"}
    assert times(store) == [due_ms] and trigger(store)["last_outcome"] == "admitted"


def test_a_claim_that_was_given_up_long_ago_does_not_make_it_punctual(
    store: Store, clock: FakeClock
) -> None:
    due_ms = begun(store, misfire="skip")
    clock.set(due_ms)
    claim(store)
    clock.advance(SCHEDULE_CLAIM_MS + 30_001)
    run_schedule(store)
    assert times(store) == [] and trigger(store)["last_outcome"] == "misfire"


def test_two_schedulers_fire_each_occurrence_once(
    store: Store, engine: Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own clocks are ten minutes apart: no step and no stage asks them."""
    import time

    begun(store, cron="* * * * *", tz="UTC")
    other = store_on(engine, clock)
    real = time.time_ns
    shown = []
    for minute in range(10):
        clock.set((clock.now_ms // MINUTE_MS + 1) * MINUTE_MS)
        for store_of, skew_s in ((store, 0), (other, 600)):
            monkeypatch.setattr(time, "time_ns", lambda skew=skew_s: real() + skew * 10**9)
            shown.append(run_schedule(store_of).effects)
        monkeypatch.setattr(time, "time_ns", real)
        assert len(times(store)) == minute + 1
    assert shown == [1, 0] * 10 and len(set(times(store))) == 10
    other.close()


def paused(store: Store) -> None:
    store.call("pause_trigger", **NAME)


def withdrawn(store: Store) -> None:
    store.call("withdraw_package", p_package_key="nightly")


def gone(store: Store) -> None:
    publish(store, {})


def other_calendar(store: Store) -> None:
    publish(store, cron="0 4 * * *")


def other_zone(store: Store) -> None:
    publish(store, tz="Asia/Tokyo")


def paused_and_resumed(store: Store) -> None:
    paused(store)
    store.call("resume_trigger", **NAME)


@pytest.mark.parametrize("change", [paused, withdrawn, gone])
def test_what_stops_a_trigger_between_claim_and_commit_stops_it(
    store: Store, clock: FakeClock, change: Change
) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    change(store)
    assert commit(store, row)["outcome"] in {"blocked", "contended"}
    clock.advance(2 * SCHEDULE_CLAIM_MS)
    assert run_schedule(store) == Tally() and runs(store) == []


@pytest.mark.parametrize("change", [other_calendar, other_zone])
def test_another_calendar_between_claim_and_commit_begins_anew(
    store: Store, clock: FakeClock, change: Change
) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    change(store)
    assert commit(store, row)["outcome"] == "contended"
    assert run_schedule(store).applied == 1 and runs(store) == []
    assert trigger(store)["next_fire_at_ms"] > clock.now_ms


def test_a_new_generation_keeps_the_cursor_and_the_claim(store: Store, clock: FakeClock) -> None:
    due_ms = begun(store)
    clock.set(due_ms)
    (row,) = claim(store)
    publish(store, overlap="skip")
    assert commit(store, row)["outcome"] == "applied"
    (run,) = runs(store)
    assert (run["scheduled_at_ms"], run["generation"]) == (due_ms, 2)


def test_a_pause_keeps_the_cursor(store: Store, clock: FakeClock) -> None:
    due_ms = begun(store)
    store.call("pause_trigger", **NAME)
    clock.set(due_ms + 2 * DAY_MS)
    assert run_schedule(store) == Tally()
    (blocked,) = store.read("schedule_blocked", package_key="nightly")
    assert blocked["waits_for"] == "resume"
    store.call("resume_trigger", **NAME)
    run_schedule(store)
    assert times(store) == [due_ms]


def test_resuming_between_claim_and_commit_fires_once(store: Store, clock: FakeClock) -> None:
    due_ms = begun(store)
    clock.set(due_ms)
    (row,) = claim(store)
    paused_and_resumed(store)
    first = commit(store, row)["outcome"]
    run_schedule(store)
    assert first in {"applied", "contended"} and times(store) == [due_ms]


def test_a_calendar_that_comes_back_does_not_fire_a_time_again(
    store: Store, clock: FakeClock
) -> None:
    due_ms = begun(store)
    clock.set(due_ms)
    run_schedule(store)
    other_calendar(store)
    clock.set(due_ms)
    publish(store)  # from now on, and now is one of its times
    run_schedule(store)
    assert times(store) == [due_ms] and trigger(store)["next_fire_at_ms"] == due_ms + DAY_MS


def test_a_clock_that_jumps_forward_and_back_fires_nothing_twice(
    store: Store, clock: FakeClock
) -> None:
    begun(store, cron="* * * * *", tz="UTC")
    clock.set((clock.now_ms // MINUTE_MS + 1) * MINUTE_MS)
    run_schedule(store)
    clock.advance(60 * MINUTE_MS)
    run_schedule(store)
    assert len(times(store)) == 2  # what the jump left out is one run
    clock.advance(-10 * MINUTE_MS)
    for _ in range(11):
        assert run_schedule(store) == Tally()
        clock.advance(MINUTE_MS)
    run_schedule(store)
    assert len(times(store)) == len(set(times(store))) == 3


def test_a_cursor_of_a_clock_that_was_a_month_ahead_begins_anew(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    due_ms = begun(store)
    clock.set(due_ms + 30 * DAY_MS)
    run_schedule(store)
    assert times(store) == [due_ms]
    clock.set(due_ms - 10 * MINUTE_MS)
    assert run_schedule(store) == Tally()
    assert run_schedule(store, whole=True).applied == 1
    assert trigger(store)["next_fire_at_ms"] == due_ms
    before = acting.everything(engine)
    assert store.call("sweep_schedule", p_limit=PAGE_SIZE) == []
    assert acting.everything(engine) == before
    for day in range(2):  # its first time was fired by the clock that was ahead
        clock.set(due_ms + day * DAY_MS)
        run_schedule(store)
    assert times(store) == [due_ms, due_ms + DAY_MS]


def test_a_back_off_of_a_clock_that_was_ahead_is_no_longer_than_the_longest(
    store: Store, clock: FakeClock
) -> None:
    begun(store)
    publish(store, cron="no cron at all")
    clock.advance(30 * DAY_MS)
    run_schedule(store)
    clock.advance(-30 * DAY_MS)
    assert store.call("sweep_schedule", p_limit=PAGE_SIZE) == [
        {"package_key": "nightly", "trigger_key": "every-night"}
    ]
    assert trigger(store)["due_at_ms"] == clock.now_ms + 300_000
    clock.advance(300_000)
    assert run_schedule(store).faulted == 1


@pytest.mark.parametrize("limit", [0, 33])
def test_a_sweep_has_bounds(store: Store, limit: int) -> None:
    with pytest.raises(Malformed):
        store.call("sweep_schedule", p_limit=limit)
    with pytest.raises(Malformed):
        store.call("claim_schedule", p_owner="me", p_token="t", p_limit=limit)


@pytest.mark.parametrize("who", [{"p_owner": ""}, {"p_token": "x" * 65}])
def test_a_claim_has_an_owner_and_a_token(store: Store, who: dict[str, str]) -> None:
    with pytest.raises(Malformed):
        store.call("claim_schedule", **{"p_owner": "me", "p_token": "t", "p_limit": 1} | who)


def test_a_clock_that_went_back_since_the_claim_decides_nothing(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    due_ms = begun(store)
    clock.set(due_ms)
    (row,) = claim(store)
    clock.advance(-1)
    before = acting.everything(engine)
    assert commit(store, row)["outcome"] == "contended"
    assert acting.everything(engine) == before
    clock.set(due_ms + SCHEDULE_CLAIM_MS)
    run_schedule(store)
    assert times(store) == [due_ms]


@pytest.mark.parametrize(
    "changes",
    [
        {"p_state_version": 99}, {"p_claim_version": 99}, {"p_observed_at_ms": 1},
        {"p_cursor_ms": 1, "p_due_at_ms": 1}, {"p_cursor_ms": None},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_a_commit_that_is_not_what_was_claimed_changes_nothing(
    store: Store, engine: Engine, clock: FakeClock, changes: Row
) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    before = acting.everything(engine)
    assert commit(store, row, **changes)["outcome"] == "contended"
    assert acting.everything(engine) == before


@pytest.mark.parametrize("who", [{"token": "t2"}, {"owner": "you"}])
def test_who_has_no_claim_cannot_commit(
    store: Store, engine: Engine, clock: FakeClock, who: dict[str, str]
) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    expected = "contended" if engine.kind == "postgres" else "applied"  # SQLite has no claims
    assert commit(store, row, **who)["outcome"] == expected


@pytest.mark.parametrize(
    "changes",
    [{"p_grace_ms": -1}, {"p_grace_ms": 300_001}, {"p_next_at_ms": 1}, {"p_due_at_ms": 7}],
    ids=lambda changes: next(iter(changes)),
)
def test_times_that_cannot_be_are_refused(
    store: Store, clock: FakeClock, changes: dict[str, int]
) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    with pytest.raises(Malformed):
        commit(store, row, **changes)
    assert commit(store, row)["outcome"] == "applied"


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_a_run_key_has_bounds(store: Store, key: str) -> None:
    publish(store)
    with pytest.raises(Malformed):
        store.call("fire_trigger", **NAME, p_run_key=key)


def test_a_trigger_that_is_none_cannot_be_committed(store: Store, clock: FakeClock) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    with pytest.raises(Unknown):
        commit(store, row, p_trigger_key="no-such")


# --- many, and a poisoned one


def many(count: int, **changes: str) -> dict[str, Any]:
    return {f"t{number:04}": NIGHTLY | changes for number in range(count)}


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
